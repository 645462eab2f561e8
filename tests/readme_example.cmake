# README.md must hold examples/quickstart.cpp, letter for letter.
file(READ ${GRADUS_SOURCE_DIR}/README.md readme)
file(READ ${GRADUS_SOURCE_DIR}/examples/quickstart.cpp quickstart)
string(FIND "${readme}" "```cpp\n${quickstart}```" at)
if(at EQUAL -1)
  message(FATAL_ERROR "the example in README.md is not examples/quickstart.cpp")
endif()
