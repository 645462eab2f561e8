// Grades the exercise that it is linked with.
#include <cstdio>

#include "examples/exercises/grade.h"

int main() {
  const exercises::Grade grade = exercises::grade(gradus::explain::parse_layer(EXERCISE_LAYER),
                                                  exercises::backward, EXERCISE_FILE);
  std::fputs(grade.text.c_str(), stdout);
  return grade.passed ? 0 : 1;
}
