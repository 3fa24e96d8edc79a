/* A folder for the files of one test program: make_folder and remove_folder are its group setup and teardown. */
#ifndef DT_TESTS_FOLDER_H
#define DT_TESTS_FOLDER_H

#include <stdio.h>
#include <stdlib.h>

static char folder[] = "/tmp/dt-test-XXXXXX";

static inline int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) == NULL;
}

static inline int remove_folder(void **state) {
  (void)state;
  char command[sizeof folder + 16];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

#endif
