/* Widening: every 16-bit, 8-bit and 4-bit code, strides, blocks of scales. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include <draintile/checkpoint.h>

#include "core/random.h"

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* sign, exponent and mantissa read as the format's definition says */
static float decode(uint32_t code, int exponent_bits, int mantissa_bits, int bias) {
  uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  int exponent = (int)(code >> mantissa_bits & ((1u << exponent_bits) - 1));
  float magnitude = exponent ? ldexpf((float)(mantissa + (1u << mantissa_bits)), exponent - bias - mantissa_bits)
                             : ldexpf((float)mantissa, 1 - bias - mantissa_bits);
  return code >> (exponent_bits + mantissa_bits) ? -magnitude : magnitude;
}

static void every_code_of_16_bits_widens_exactly(void **state) {
  (void)state;
  uint16_t *codes = malloc(65536 * sizeof *codes);
  float *out = malloc(65536 * sizeof *out);
  for (uint32_t i = 0; i < 65536; i++) codes[i] = (uint16_t)i;
  dt_matrix m = {.data = codes, .dtype = DT_DTYPE_F16, .rows = 1, .cols = 65536, .row_stride = 65536, .col_stride = 1};
  dt_matrix_widen(&m, 0, 1, out);
  for (uint32_t i = 0; i < 65536; i++) {
    if ((i & 0x7c00) == 0x7c00) {
      assert_true(i & 0x3ff ? isnan(out[i]) : isinf(out[i]) && (out[i] < 0) == (i >> 15));
    } else {
      assert_int_equal(bits_of(out[i]), bits_of(decode(i, 5, 10, 15)));
    }
  }
  m.dtype = DT_DTYPE_BF16;
  dt_matrix_widen(&m, 0, 1, out);
  for (uint32_t i = 0; i < 65536; i++) {
    uint32_t bits;
    memcpy(&bits, &out[i], sizeof bits);
    assert_int_equal(bits, i << 16);
  }
  free(codes);
  free(out);
}

static void every_code_of_e4m3_widens_exactly(void **state) {
  (void)state;
  uint8_t codes[256];
  float out[256];
  for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
  dt_matrix m = {.data = codes, .dtype = DT_DTYPE_F8_E4M3, .rows = 4, .cols = 64, .row_stride = 64, .col_stride = 1};
  dt_matrix_widen(&m, 0, 4, out);
  for (uint32_t i = 0; i < 256; i++) {
    if ((i & 0x7f) == 0x7f) {
      assert_true(isnan(out[i]));
    } else {
      assert_int_equal(bits_of(out[i]), bits_of(decode(i, 4, 3, 7)));
    }
  }
  assert_true(out[0x7e] == 448.0f);
}

static void blocks_of_scales_end_at_ragged_edges(void **state) {
  (void)state;
  enum { ROWS = 7, COLS = 11 };
  uint8_t codes[ROWS * COLS];
  float scales[3][3], plain[ROWS * COLS], out[ROWS * COLS]; /* blocks of 3 x 4; stride of a scale row 3 */
  dt_random random = {7};
  for (int i = 0; i < ROWS * COLS; i++) codes[i] = (uint8_t)dt_random_below(&random, 0x7f);
  for (int i = 0; i < 9; i++) scales[i / 3][i % 3] = (float)(i + 1) * 0.125f;
  dt_matrix m = {
      .data = codes, .dtype = DT_DTYPE_F8_E4M3, .rows = ROWS, .cols = COLS, .row_stride = COLS, .col_stride = 1};
  dt_matrix_widen(&m, 0, ROWS, plain);
  m.scales = scales;
  m.scale_rows = 3;
  m.scale_cols = 4;
  m.scale_stride = 3;
  dt_matrix_widen(&m, 0, ROWS, out);
  for (int i = 0; i < ROWS; i++) {
    for (int j = 0; j < COLS; j++) assert_true(out[i * COLS + j] == plain[i * COLS + j] * scales[i / 3][j / 4]);
  }
  float one[COLS];
  for (int i = 0; i < ROWS; i++) { /* any first row */
    dt_matrix_widen(&m, i, 1, one);
    assert_memory_equal(one, out + i * COLS, sizeof one);
  }
}

static void mxfp4_blocks_widen_with_their_scales(void **state) {
  (void)state;
  enum { ROWS = 6, COLS = 64, PER_ROW = COLS / 32 };
  uint8_t blocks[ROWS][PER_ROW][16], scales[ROWS][PER_ROW];
  dt_random random = {8};
  for (int i = 0; i < ROWS * PER_ROW * 16; i++) (&blocks[0][0][0])[i] = (uint8_t)dt_random_below(&random, 256);
  for (int i = 0; i < ROWS * PER_ROW; i++) (&scales[0][0])[i] = (uint8_t)(120 + i);
  scales[5][0] = 0;
  scales[5][1] = 255;
  /* the odd rows, as gpt_oss stores its up projection */
  dt_matrix m = {.data = blocks[1],
                 .scales = scales[1],
                 .dtype = DT_DTYPE_MXFP4,
                 .rows = ROWS / 2,
                 .cols = COLS,
                 .row_stride = 2,
                 .col_stride = 1};
  float out[ROWS / 2][COLS];
  dt_matrix_widen(&m, 0, ROWS / 2, out[0]);
  for (int i = 0; i < ROWS / 2; i++) {
    for (int j = 0; j < COLS; j++) {
      int row = 2 * i + 1;
      uint8_t byte = blocks[row][j / 32][j % 32 / 2];
      float value = decode(j % 2 ? byte >> 4 : byte & 15, 2, 1, 1);
      if (scales[row][j / 32] == 255) {
        assert_true(isnan(out[i][j]));
      } else {
        assert_int_equal(bits_of(out[i][j]), bits_of(ldexpf(value, scales[row][j / 32] - 127)));
      }
    }
  }
}

/* Element (i, j) at i*row_stride + j*col_stride, whatever the strides: rows apart, interleaved, transposed. */
static void strides_reach_the_right_elements(void **state) {
  (void)state;
  static const struct {
    int64_t rows, cols, row_stride, col_stride;
  } shapes[] = {{5, 7, 7, 1}, {5, 7, 20, 1},   {70, 130, 1, 70}, {70, 130, 2, 141},
                {1, 1, 1, 1}, {64, 64, 1, 64}, {3, 5, 30, 2}};
  static const dt_dtype dtypes[] = {DT_DTYPE_F32, DT_DTYPE_BF16, DT_DTYPE_F16, DT_DTYPE_F8_E4M3, DT_DTYPE_F64};
  dt_random random = {9};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    int64_t rows = shapes[s].rows, cols = shapes[s].cols;
    int64_t elements = (rows - 1) * shapes[s].row_stride + (cols - 1) * shapes[s].col_stride + 1;
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
      size_t width = dt_dtype_bytes(dtypes[d]);
      uint8_t *data = malloc((size_t)elements * width); /* exact: the address sanitizer sees a read past the end */
      float *flat = malloc((size_t)elements * sizeof *flat), *out = malloc((size_t)(rows * cols) * sizeof *out);
      for (size_t i = 0; i < (size_t)elements * width; i++) data[i] = (uint8_t)dt_random_below(&random, 256);
      dt_matrix line = {
          .data = data, .dtype = dtypes[d], .rows = 1, .cols = elements, .row_stride = elements, .col_stride = 1};
      dt_matrix_widen(&line, 0, 1, flat);
      dt_matrix m = {.data = data,
                     .dtype = dtypes[d],
                     .rows = rows,
                     .cols = cols,
                     .row_stride = shapes[s].row_stride,
                     .col_stride = shapes[s].col_stride};
      int64_t first = rows / 3;
      dt_matrix_widen(&m, first, rows - first, out);
      for (int64_t i = first; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) {
          float expected = flat[i * m.row_stride + j * m.col_stride], found = out[(i - first) * cols + j];
          assert_true(bits_of(expected) == bits_of(found) || (isnan(expected) && isnan(found)));
        }
      }
      int64_t stride = 0;
      const float *in_place = dt_matrix_f32(&m, first, &stride);
      if (dtypes[d] == DT_DTYPE_F32 && m.col_stride == 1) {
        assert_ptr_equal(in_place, (const float *)(const void *)data + first * m.row_stride);
        assert_int_equal(stride, m.row_stride);
      } else {
        assert_null(in_place);
      }
      free(data);
      free(flat);
      free(out);
    }
  }
}

/* Past 2^31 elements: of a mapping that is never filled, only the last rows are touched. */
static void rows_beyond_32_bits_are_reached(void **state) {
  (void)state;
  enum { ROWS = 32769, COLS = 65536 }; /* the last row starts at element 2^31 */
  const size_t elements = (size_t)ROWS * COLS, scales = (size_t)ROWS * (COLS / 128);
  uint16_t *data =
      mmap(NULL, elements * sizeof *data, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  float *scale =
      mmap(NULL, scales * sizeof *scale, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  float *out = malloc(COLS * sizeof *out);
  assert_true(data != MAP_FAILED && scale != MAP_FAILED);
  const size_t last = (size_t)(ROWS - 1) * COLS;
  data[last] = 0x3f80, data[last + COLS - 1] = 0xc000; /* 1, -2 */
  dt_matrix m = {.data = data, .dtype = DT_DTYPE_BF16, .rows = ROWS, .cols = COLS, .row_stride = COLS, .col_stride = 1};
  dt_matrix_widen(&m, ROWS - 1, 1, out);
  assert_true(out[0] == 1 && out[1] == 0 && out[COLS - 1] == -2);
  m = (dt_matrix){
      .data = data, .dtype = DT_DTYPE_BF16, .rows = COLS, .cols = ROWS, .row_stride = 1, .col_stride = COLS};
  dt_matrix_widen(&m, COLS - 1, 1, out); /* transposed: the last column */
  assert_true(out[0] == 0 && out[ROWS - 1] == -2);
  data[last] = 0xb838; /* two bytes of e4m3: 1, -1 */
  scale[scales - COLS / 128] = 4;
  m = (dt_matrix){.data = data,
                  .dtype = DT_DTYPE_F8_E4M3,
                  .rows = 2 * ROWS - 1,
                  .cols = COLS,
                  .row_stride = COLS,
                  .col_stride = 1,
                  .scales = scale,
                  .scale_rows = 2,
                  .scale_cols = 128,
                  .scale_stride = COLS / 128};
  dt_matrix_widen(&m, 2 * ROWS - 2, 1, out);
  assert_true(out[0] == 4 && out[1] == -4 && out[2] == 0);
  munmap(data, elements * sizeof *data);
  munmap(scale, scales * sizeof *scale);
  free(out);
}

static void dtype_names_parse_back(void **state) {
  (void)state;
  for (int i = 0; i <= DT_DTYPE_F64; i++) {
    dt_dtype parsed;
    assert_int_equal(dt_dtype_parse(dt_dtype_name((dt_dtype)i), &parsed), DT_OK);
    assert_int_equal(parsed, i);
  }
  dt_dtype untouched = DT_DTYPE_I64;
  assert_int_equal(dt_dtype_parse("float", &untouched), DT_ERR_ARGUMENT);
  assert_int_equal(untouched, DT_DTYPE_I64);
  assert_string_equal(dt_dtype_name((dt_dtype)99), "unknown");
  assert_int_equal(dt_dtype_bytes(DT_DTYPE_MXFP4), 0);
  assert_int_equal(dt_dtype_bytes(DT_DTYPE_BF16), 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_code_of_16_bits_widens_exactly),
      cmocka_unit_test(every_code_of_e4m3_widens_exactly),
      cmocka_unit_test(blocks_of_scales_end_at_ragged_edges),
      cmocka_unit_test(mxfp4_blocks_widen_with_their_scales),
      cmocka_unit_test(strides_reach_the_right_elements),
      cmocka_unit_test(rows_beyond_32_bits_are_reached),
      cmocka_unit_test(dtype_names_parse_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
