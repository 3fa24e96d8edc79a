/* Custom mutator of fuzz_safetensors: keeps the header length in step with the header, and swaps numbers for ones that
 * sit on edges, so that most inputs get past the first checks. One in eight is mutated blindly all the same. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

/* Writes `text` over [at, at + old) of the file; bytes behind it move. Returns the new size, or `size` when full. */
static size_t splice(uint8_t *data, size_t size, size_t max_size, size_t at, size_t old, const char *text) {
  size_t length = strlen(text);
  if (size - old + length > max_size) return size;
  memmove(data + at + length, data + at + old, size - at - old);
  memcpy(data + at, text, length);
  return size - old + length;
}

/* Replaces one number of the header. */
static size_t swap_number(uint8_t *data, size_t size, size_t max_size, size_t end, dt_random *random) {
  size_t starts[256], count = 0;
  for (size_t i = 8; i < end && count < 256; i++) {
    int digit = data[i] >= '0' && data[i] <= '9', before = data[i - 1] >= '0' && data[i - 1] <= '9';
    if (digit && !before) starts[count++] = i;
  }
  if (count == 0) return size;
  size_t at = starts[dt_random_below(random, count)], old = 0;
  uint64_t value = 0;
  while (at + old < end && data[at + old] >= '0' && data[at + old] <= '9' && old < 18) {
    value = value * 10 + (uint64_t)(data[at + old++] - '0');
  }
  static const char *const edges[] = {"0",
                                      "1",
                                      "-1",
                                      "2147483648",
                                      "4294967296",
                                      "9223372036854775807",
                                      "9223372036854775808",
                                      "4611686018427387904",
                                      "1.0",
                                      "1e3"};
  char text[32];
  size_t edge = dt_random_below(random, 20);
  if (edge < sizeof edges / sizeof *edges) {
    snprintf(text, sizeof text, "%s", edges[edge]);
  } else if (edge < 13) {
    snprintf(text, sizeof text, "%zu", size - end); /* the bytes of data there are */
  } else {
    static const int steps[] = {-8, -4, -1, 1, 2, 4, 8};
    snprintf(text, sizeof text, "%lld", (long long)value + steps[edge - 13]);
  }
  return splice(data, size, max_size, at, old, text);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
  dt_random random = {seed};
  if (size < 10 || dt_random_below(&random, 8) == 0) return LLVMFuzzerMutate(data, size, max_size);
  uint64_t header = 0;
  for (int i = 7; i >= 0; i--) header = header << 8 | data[i];
  size_t end = header > size - 8 ? size : 8 + (size_t)header, before = size;
  switch (dt_random_below(&random, 3)) {
  case 0: { /* the header's text */
    uint8_t *text = malloc(max_size);
    if (!text) return size;
    memcpy(text, data + 8, end - 8);
    size_t length = LLVMFuzzerMutate(text, end - 8, max_size - 8 - (size - end));
    memmove(data + 8 + length, data + end, size - end);
    memcpy(data + 8, text, length);
    size = 8 + length + (size - end);
    end = 8 + length;
    free(text);
    break;
  }
  case 1:
    size = swap_number(data, size, max_size, end, &random);
    end = end + size - before;
    break;
  default: /* more or less data */
    size = end + dt_random_below(&random, max_size - end < 64 ? max_size - end + 1 : 64);
    if (size > before) memset(data + before, 0x3c, size - before);
    break;
  }
  for (int i = 0; i < 8; i++) data[i] = (uint8_t)((uint64_t)(end - 8) >> (8 * i));
  return size;
}
