/* A cmocka program that feeds each file of tests/fuzz/corpus/CORPUS to the target that was included before this. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static void feed(const char *path) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  uint8_t *bytes = malloc(1 << 16);
  assert_non_null(bytes);
  size_t size = fread(bytes, 1, 1 << 16, file);
  fclose(file);
  uint8_t *exact = malloc(size ? size : 1); /* the sanitizer sees a read past the end */
  assert_non_null(exact);
  memcpy(exact, bytes, size);
  assert_int_equal(LLVMFuzzerTestOneInput(exact, size), 0);
  free(exact);
  free(bytes);
}

static void the_corpus_is_read_or_refused(void **state) {
  (void)state;
  const char *folder = DT_TEST_DATA "/../fuzz/corpus/" CORPUS;
  DIR *listing = opendir(folder);
  assert_non_null(listing);
  int count = 0;
  for (struct dirent *entry = readdir(listing); entry; entry = readdir(listing)) {
    char path[1024];
    if (entry->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    feed(path);
    count++;
  }
  closedir(listing);
  assert_true(count >= 20); /* the corpus is there */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_corpus_is_read_or_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
