/* What a client of this folder needs of a test framework: a count of failures and where they are. C11 and C++. */
#ifndef TESSELLA_TESTS_PACKAGING_EXPECT_H
#define TESSELLA_TESTS_PACKAGING_EXPECT_H

#include <stdio.h>

static int num_failures = 0;

#define EXPECT(condition)                                                                                      \
  do {                                                                                                         \
    if (!(condition)) {                                                                                        \
      ++num_failures;                                                                                          \
      fprintf(stderr, "%s:%d: %s does not hold; %s\n", __FILE__, __LINE__, #condition, tessella_last_error()); \
    }                                                                                                          \
  } while (0)

#endif /* TESSELLA_TESTS_PACKAGING_EXPECT_H */
