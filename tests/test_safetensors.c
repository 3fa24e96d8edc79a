/* Tensor files: what a reader must refuse, and a writer that leaves a whole file or none. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <draintile/checkpoint.h>

#include "folder.h"
#include "io/safetensors.h"

static const char *at(const char *name) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static void remove_partial(void) {
  char command[300];
  snprintf(command, sizeof command, "rm -f %s/*.partial", folder);
  assert_int_equal(system(command), 0);
}

static int folder_entries(void) {
  char command[300];
  int count = -1;
  snprintf(command, sizeof command, "ls -A %s | wc -l", folder);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  assert_int_equal(fscanf(pipe, "%d", &count), 1);
  pclose(pipe);
  return count;
}

/* A file of this header and `data_bytes` zero bytes, in an exact-size heap block so that the address sanitizer sees any
 * read past its end. */
static dt_status parse(const char *header, size_t data_bytes) {
  size_t length = strlen(header), size = 8 + length + data_bytes;
  unsigned char *bytes = calloc(size, 1);
  assert_non_null(bytes);
  for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
  memcpy(bytes + 8, header, length);
  dt_tensor_file *file = NULL;
  dt_status status = dt_tensor_file_parse(bytes, size, "weights.safetensors", &file);
  dt_tensor_file_close(file);
  free(bytes);
  return status;
}

static void refused_files_name_tensor_and_file(void **state) {
  (void)state;
  static const struct {
    const char *header;
    size_t data_bytes;
    const char *tensor, *what;
  } cases[] = {
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "'a'", "truncated"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "'a'", "takes 12"},
      {"{\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "'a'", "dtype 'F99'"},
      {"{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "'a'", "dtype must be a string"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "'a'", "shape must be"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "'a'", "shape must be"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "'a'", "shape must be"},
      {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "'a'", "shape must be"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8, "'a'", "overflows"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807,4],\"data_offsets\":[0,8]}}", 8, "'a'", "overflows"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, "'a'", "9 dimensions"},
      {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "'a'", "whole bytes"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,0]}}", 8, "'a'", "begin <= end"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[-8,0]}}", 8, "'a'", "begin <= end"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8,9]}}", 8, "'a'", "begin <= end"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,9223372036854775807]}}", 8, "'a'", "truncated"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
       "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[4,12]}}",
       12, "'b'", "overlap tensor 'a'"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
       "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
       8, "'", "overlap tensor '"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
       "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,12]}}",
       12, "'b'", "bytes 4 to 8 before its data belong to no tensor"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 9, "", "last 5 bytes"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
       "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
       4, "", "duplicate"},
      {"{\"a\\nb\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "'a?b'", "takes 8"},
      {"{\"a\":[]}", 0, "'a'", "must be an object"},
      {"[]", 0, "", "must be an object"},
      {"{\"__metadata__\":3}", 0, "", "__metadata__"},
      {"{\"a\":", 0, "", "header, byte"},
      {"", 0, "", "header, byte"},
      {"{} x", 0, "", "header, byte"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    dt_status status = parse(cases[i].header, cases[i].data_bytes);
    const char *detail = dt_error_detail();
    if (status != DT_ERR_INPUT || strncmp(detail, "weights.safetensors: ", 21) || !strstr(detail, cases[i].tensor) ||
        !strstr(detail, cases[i].what) || strchr(detail, '\n')) {
      fail_msg("%s: status %d, detail: %s", cases[i].header, status, detail);
    }
  }
}

static void header_lengths_are_checked(void **state) {
  (void)state;
  dt_tensor_file *file = NULL;
  static const unsigned char huge[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'};
  static const unsigned char larger[16] = {0x01, 0xe1, 0xf5, 0x05, 0, 0, 0, 0, '{', '}'}; /* by one */
  static const unsigned char largest[16] = {0x00, 0xe1, 0xf5, 0x05, 0, 0, 0, 0, '{', '}'};
  static const unsigned char cut[16] = {9, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
  for (size_t size = 0; size < 8; size++) {
    assert_int_equal(dt_tensor_file_parse(huge, size, "f", &file), DT_ERR_INPUT);
  }
  assert_int_equal(dt_tensor_file_parse(huge, sizeof huge, "f", &file), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "at most 100000000"));
  assert_int_equal(dt_tensor_file_parse(larger, sizeof larger, "f", &file), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "100000001 bytes; at most 100000000"));
  assert_int_equal(dt_tensor_file_parse(largest, sizeof largest, "f", &file), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "truncated"));
  assert_int_equal(dt_tensor_file_parse(cut, sizeof cut, "f", &file), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "truncated"));
  assert_null(file);
}

static void every_cut_of_a_good_file_is_refused(void **state) {
  (void)state;
  const char *header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
                       "\"b\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[8,10]}}";
  size_t length = strlen(header), size = 8 + length + 10;
  for (size_t cut = 0; cut <= size; cut++) {
    unsigned char *bytes = calloc(size, 1), *block = malloc(cut + 1);
    bytes[0] = (unsigned char)length;
    memcpy(bytes + 8, header, length);
    unsigned char *exact = block + 1; /* the end of the block is the end of the file */
    memcpy(exact, bytes, cut);
    dt_tensor_file *file = NULL;
    dt_status status = dt_tensor_file_parse(exact, cut, "f", &file);
    assert_int_equal(status, cut == size ? DT_OK : DT_ERR_INPUT);
    dt_tensor_file_close(file);
    free(block);
    free(bytes);
  }
}

static void tensors_are_found_where_they_lie(void **state) {
  (void)state;
  const dt_tensor_spec specs[] = {{"zeta", DT_DTYPE_BF16, 2, {3, 2}},
                                  {"scalar", DT_DTYPE_F32, 0, {0}},
                                  {"ids", DT_DTYPE_I64, 1, {2}},
                                  {"empty", DT_DTYPE_F32, 2, {0, 7}},
                                  {"byte", DT_DTYPE_U8, 1, {1}}};
  const uint16_t zeta[6] = {1, 2, 3, 4, 5, 6};
  const float scalar = 2.5f;
  const int64_t ids[2] = {-1, INT64_C(1) << 40};
  const uint8_t byte = 9;
  const char *path = at("good.safetensors");
  dt_tensor_writer *writer = NULL;
  assert_int_equal(dt_tensor_writer_create(path, specs, 5, &writer), DT_OK);
  assert_int_equal(dt_tensor_writer_rows(writer, "zeta", 1, 2, zeta + 2), DT_OK);
  assert_int_equal(dt_tensor_writer_rows(writer, "zeta", 0, 1, zeta), DT_OK);
  assert_int_equal(dt_tensor_writer_rows(writer, "scalar", 0, 1, &scalar), DT_OK);
  assert_int_equal(dt_tensor_writer_rows(writer, "ids", 0, 2, ids), DT_OK);
  assert_int_equal(dt_tensor_writer_rows(writer, "empty", 0, 0, NULL), DT_OK);
  assert_int_equal(dt_tensor_writer_rows(writer, "byte", 0, 1, &byte), DT_OK);
  assert_int_equal(dt_tensor_writer_rows(writer, "zeta", 2, 2, zeta), DT_ERR_ARGUMENT);
  assert_int_equal(dt_tensor_writer_rows(writer, "zeta", -1, 1, zeta), DT_ERR_ARGUMENT);
  assert_int_equal(dt_tensor_writer_rows(writer, "other", 0, 1, zeta), DT_ERR_INPUT);
  assert_int_equal(access(path, F_OK), -1); /* not before commit */
  assert_int_equal(dt_tensor_writer_commit(writer), DT_OK);

  dt_tensor_file *file = NULL;
  dt_tensor tensor;
  assert_int_equal(dt_tensor_file_open(path, &file), DT_OK);
  assert_int_equal(dt_tensor_file_count(file), 5);
  assert_string_equal(dt_tensor_file_name(file, 0), "byte");
  assert_string_equal(dt_tensor_file_name(file, 4), "zeta");
  assert_null(dt_tensor_file_name(file, 5));
  assert_string_equal(dt_tensor_file_path(file), path);
  assert_int_equal(dt_tensor_file_get(file, "zeta", &tensor), DT_OK);
  assert_int_equal(tensor.dtype, DT_DTYPE_BF16);
  assert_int_equal(tensor.dims, 2);
  assert_int_equal(tensor.shape[0], 3);
  assert_int_equal(tensor.shape[1], 2);
  assert_memory_equal(tensor.data, zeta, sizeof zeta);
  assert_int_equal(dt_tensor_file_get(file, "ids", &tensor), DT_OK);
  assert_memory_equal(tensor.data, ids, sizeof ids);
  assert_int_equal((uintptr_t)tensor.data % 8, 0);
  assert_int_equal(dt_tensor_file_get(file, "scalar", &tensor), DT_OK);
  assert_int_equal(tensor.dims, 0);
  assert_memory_equal(tensor.data, &scalar, sizeof scalar);
  assert_int_equal(dt_tensor_file_get(file, "empty", &tensor), DT_OK);
  assert_int_equal(tensor.bytes, 0);
  assert_int_equal(dt_tensor_file_get(file, "byte", &tensor), DT_OK);
  assert_int_equal(*(const uint8_t *)tensor.data, 9);
  assert_true(dt_tensor_file_has(file, "ids"));
  assert_false(dt_tensor_file_has(file, "id"));
  assert_int_equal(dt_tensor_file_get(file, "id", &tensor), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "tensor 'id'"));
  assert_non_null(strstr(dt_error_detail(), path));
  dt_tensor_file_close(file);
  unlink(path);
}

static void unsupported_and_unaligned_tensors_are_refused_when_asked_for(void **state) {
  (void)state;
  const char *header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                       "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]},"
                       "\"c\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[5,9]}}   ";
  dt_tensor_file *file = NULL;
  size_t length = strlen(header) / 8 * 8; /* spaces pad: the data starts 8-byte aligned */
  unsigned char *bytes = calloc(1, 8 + length + 9);
  bytes[0] = (unsigned char)length;
  memcpy(bytes + 8, header, length);
  assert_int_equal(dt_tensor_file_parse(bytes, 8 + length + 9, "f", &file), DT_OK);
  dt_tensor tensor;
  assert_int_equal(dt_tensor_file_get(file, "a", &tensor), DT_OK);
  assert_int_equal(dt_tensor_file_get(file, "b", &tensor), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "aligned"));
  assert_int_equal(dt_tensor_file_get(file, "c", &tensor), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "I16"));
  dt_tensor_file_close(file);
  free(bytes);
}

static void paths_that_are_no_files_are_refused(void **state) {
  (void)state;
  dt_tensor_file *file = NULL;
  assert_int_equal(dt_tensor_file_open(at("absent"), &file), DT_ERR_IO);
  assert_non_null(strstr(dt_error_detail(), at("absent")));
  assert_int_equal(dt_tensor_file_open(folder, &file), DT_ERR_IO);
  assert_int_equal(mkfifo(at("fifo"), 0600), 0);
  assert_int_equal(dt_tensor_file_open(at("fifo"), &file), DT_ERR_IO);
  unlink(at("fifo"));
  fclose(fopen(at("empty"), "w"));
  assert_int_equal(dt_tensor_file_open(at("empty"), &file), DT_ERR_INPUT);
  unlink(at("empty"));
}

typedef struct share {
  const dt_tensor_writer *writer;
  int64_t first, rows, width;
} share;

static dt_status write_share(const share *s) {
  float row[16];
  for (int64_t i = s->first; i < s->first + s->rows; i++) {
    for (int64_t j = 0; j < s->width; j++) row[j] = (float)(i * s->width + j);
    dt_status status = dt_tensor_writer_rows(s->writer, "output", i, 1, row);
    if (status != DT_OK) return status;
  }
  return DT_OK;
}

static void *thread_share(void *argument) {
  return (void *)(intptr_t)write_share(argument);
}

/* Two threads, a forked child and a joined process each write a quarter. */
static void threads_and_processes_write_one_file(void **state) {
  (void)state;
  enum { ROWS = 400, WIDTH = 16, QUARTER = ROWS / 4 };
  const dt_tensor_spec spec = {"output", DT_DTYPE_F32, 2, {ROWS, WIDTH}};
  const char *path = at("shared.safetensors");
  dt_tensor_writer *writer = NULL;
  assert_int_equal(dt_tensor_writer_create(path, &spec, 1, &writer), DT_OK);
  pid_t forked = fork();
  if (forked == 0) {
    dt_status status = write_share(&(share){writer, 0, QUARTER, WIDTH});
    dt_tensor_writer_discard(writer); /* must not remove the parent's file */
    _exit((int)status);
  }
  pid_t joined = fork();
  if (joined == 0) {
    dt_tensor_writer *own = NULL;
    dt_status status = dt_tensor_writer_join(dt_tensor_writer_handle(writer), &own);
    if (status == DT_OK) status = write_share(&(share){own, QUARTER, QUARTER, WIDTH});
    if (status == DT_OK && dt_tensor_writer_commit(own) != DT_ERR_ARGUMENT) status = DT_ERR_INTERNAL;
    _exit((int)status);
  }
  pthread_t threads[2];
  share shares[2] = {{writer, 2 * QUARTER, QUARTER, WIDTH}, {writer, 3 * QUARTER, QUARTER, WIDTH}};
  for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, thread_share, &shares[i]), 0);
  for (int i = 0; i < 2; i++) {
    void *status;
    pthread_join(threads[i], &status);
    assert_int_equal((intptr_t)status, DT_OK);
  }
  int code;
  assert_int_equal(waitpid(forked, &code, 0), forked);
  assert_int_equal(code, 0);
  assert_int_equal(waitpid(joined, &code, 0), joined);
  assert_int_equal(code, 0);
  assert_int_equal(dt_tensor_writer_commit(writer), DT_OK);
  assert_int_equal(folder_entries(), 1);

  dt_tensor_file *file = NULL;
  dt_tensor tensor;
  assert_int_equal(dt_tensor_file_open(path, &file), DT_OK);
  assert_int_equal(dt_tensor_file_get(file, "output", &tensor), DT_OK);
  for (int64_t i = 0; i < ROWS * WIDTH; i++) assert_true(((const float *)tensor.data)[i] == (float)i);
  dt_tensor_file_close(file);
  unlink(path);
}

static void a_writer_that_fails_leaves_the_old_file(void **state) {
  (void)state;
  const char *path = at("kept.safetensors");
  FILE *old = fopen(path, "w");
  fputs("old", old);
  fclose(old);
  const dt_tensor_spec spec = {"output", DT_DTYPE_F32, 1, {4}};
  dt_tensor_writer *writer = NULL;
  assert_int_equal(dt_tensor_writer_create(path, &spec, 1, &writer), DT_OK);
  dt_tensor_writer_discard(writer);
  assert_int_equal(folder_entries(), 1);

  pid_t killed = fork();
  if (killed == 0) {
    dt_tensor_writer *own = NULL;
    if (dt_tensor_writer_create(path, &spec, 1, &own) == DT_OK) raise(SIGKILL);
    _exit(1);
  }
  int code;
  assert_int_equal(waitpid(killed, &code, 0), killed);
  assert_true(WIFSIGNALED(code));
  remove_partial(); /* left only where the file system has no files without a name */
  char text[8] = "";
  old = fopen(path, "r");
  assert_non_null(fgets(text, sizeof text, old));
  fclose(old);
  assert_string_equal(text, "old");

  assert_int_equal(dt_tensor_writer_create(path, &spec, 1, &writer), DT_OK); /* and a commit replaces it */
  assert_int_equal(dt_tensor_writer_commit(writer), DT_OK);
  dt_tensor_file *file = NULL;
  assert_int_equal(dt_tensor_file_open(path, &file), DT_OK);
  dt_tensor_file_close(file);
  unlink(path);
}

static void writers_refuse_bad_requests(void **state) {
  (void)state;
  dt_tensor_writer *writer = NULL;
  dt_tensor_spec spec = {"output", DT_DTYPE_F32, 1, {4}};
  assert_int_equal(dt_tensor_writer_create(at("no/such/folder"), &spec, 1, &writer), DT_ERR_IO);
  assert_non_null(strstr(dt_error_detail(), at("no/such/folder")));
  static const char *const no_files[] = {"/dev/null", "/dev/full", "/tmp"};
  for (int i = 0; i < 3; i++) { /* never replaced by a file */
    assert_int_equal(dt_tensor_writer_create(no_files[i], &spec, 1, &writer), DT_ERR_IO);
    assert_non_null(strstr(dt_error_detail(), no_files[i]));
  }
  spec.dtype = DT_DTYPE_MXFP4;
  assert_int_equal(dt_tensor_writer_create(at("x"), &spec, 1, &writer), DT_ERR_ARGUMENT);
  spec = (dt_tensor_spec){"output", DT_DTYPE_F32, 2, {INT64_C(1) << 40, INT64_C(1) << 40}};
  assert_int_equal(dt_tensor_writer_create(at("x"), &spec, 1, &writer), DT_ERR_ARGUMENT);
  spec = (dt_tensor_spec){"output", DT_DTYPE_F32, 1, {-1}};
  assert_int_equal(dt_tensor_writer_create(at("x"), &spec, 1, &writer), DT_ERR_ARGUMENT);
  const dt_tensor_spec twice[] = {{"a", DT_DTYPE_F32, 1, {1}}, {"a", DT_DTYPE_F32, 1, {1}}};
  assert_int_equal(dt_tensor_writer_create(at("x"), twice, 2, &writer), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "'a'"));
  const dt_tensor_spec bytes = {"\xff\xfe", DT_DTYPE_F32, 1, {1}};
  assert_int_equal(dt_tensor_writer_create(at("x"), &bytes, 1, &writer), DT_ERR_ARGUMENT);
  spec = (dt_tensor_spec){"output", DT_DTYPE_F32, 1, {INT64_C(1) << 56}}; /* 2^58 bytes */
  assert_int_equal(dt_tensor_writer_create(at("x"), &spec, 1, &writer), DT_ERR_IO);
  assert_non_null(strstr(dt_error_detail(), "no space left"));
  assert_non_null(strstr(dt_error_detail(), at("x")));
  assert_int_equal(dt_tensor_writer_join("nonsense", &writer), DT_ERR_ARGUMENT);
  assert_int_equal(dt_tensor_writer_join("/proc/self/fd/999\n/tmp/x", &writer), DT_ERR_IO);
  assert_int_equal(folder_entries(), 0);
  assert_null(writer);
}

/* A device that fills up while rows are written looks like a file size limit: the same failing pwrite. */
static void a_write_that_fails_names_the_path(void **state) {
  (void)state;
  pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const dt_tensor_spec spec = {"output", DT_DTYPE_F32, 1, {65536}};
    dt_tensor_writer *writer = NULL;
    if (dt_tensor_writer_create(at("limited"), &spec, 1, &writer) != DT_OK) _exit(1);
    struct rlimit limit = {4096, 4096};
    static const float rows[65536];
    if (setrlimit(RLIMIT_FSIZE, &limit)) _exit(2);
    if (dt_tensor_writer_rows(writer, "output", 0, 65536, rows) != DT_ERR_IO) _exit(3);
    if (!strstr(dt_error_detail(), at("limited"))) _exit(4);
    dt_tensor_writer_discard(writer);
    _exit(access(at("limited"), F_OK) == 0 ? 5 : 0);
  }
  int code;
  assert_int_equal(waitpid(child, &code, 0), child);
  assert_int_equal(code, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(refused_files_name_tensor_and_file),
      cmocka_unit_test(header_lengths_are_checked),
      cmocka_unit_test(every_cut_of_a_good_file_is_refused),
      cmocka_unit_test(tensors_are_found_where_they_lie),
      cmocka_unit_test(unsupported_and_unaligned_tensors_are_refused_when_asked_for),
      cmocka_unit_test(paths_that_are_no_files_are_refused),
      cmocka_unit_test(threads_and_processes_write_one_file),
      cmocka_unit_test(a_writer_that_fails_leaves_the_old_file),
      cmocka_unit_test(writers_refuse_bad_requests),
      cmocka_unit_test(a_write_that_fails_names_the_path),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
