cmake_minimum_required(VERSION 3.25)
# Configures the project beside this file, which takes in gradus by add_subdirectory().
file(REMOVE_RECURSE ${WORK_DIR})
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK_DIR} -G ${GENERATOR}
          -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DGRADUS_SOURCE_DIR=${GRADUS_SOURCE_DIR}
          -DCMAKE_BUILD_TYPE=Release -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

# A shared library of hidden symbols has nothing that a program could link to.
file(STRINGS ${WORK_DIR}/compile_commands.json hidden REGEX "-fvisibility=hidden")
if(hidden)
  message(FATAL_ERROR "the parent's visibility hides what gradus should export: ${hidden}")
endif()
# Joined files of gradus do not compile.
file(STRINGS ${WORK_DIR}/compile_commands.json joined REGEX "/Unity/")
if(joined)
  message(FATAL_ERROR "the parent's unity build joins files of gradus: ${joined}")
endif()
file(READ ${WORK_DIR}/gradus/cmake_install.cmake install)
if(NOT install MATCHES "/doc/gradus\"[^\n]*/LICENSE\"")
  message(FATAL_ERROR "gradus's LICENSE is not installed in a folder of its own")
endif()
