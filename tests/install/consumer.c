/* A program outside the tree: compiled against the installed headers, linked with the installed library. */
#include <draintile/draintile.h>

#include <stdio.h>
#include <string.h>

int main(void) {
  int32_t ids[4] = {0, 1, 1, -1}, counts[2], row_of_slot[4], slot_of_row[4];
  if (dt_slots(ids, 2, 2, 2, counts, row_of_slot, slot_of_row) != DT_OK) return 1;
  if (counts[0] != 1 || counts[1] != 2 || row_of_slot[3] != -1) return 2;
  if (strcmp(dt_version(), DT_VERSION_STRING) != 0) return 3;
  puts("installed library works");
  return 0;
}
