cmake_minimum_required(VERSION 3.25)
# Installs gradus below WORK_DIR, runs the installed program, checks that no header was forgotten, and
# builds and runs the program beside this file against what was installed.
file(REMOVE_RECURSE ${WORK_DIR})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${GRADUS_BINARY_DIR} --prefix ${WORK_DIR}/prefix
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK_DIR}/prefix/bin/gradus info OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

set(forgotten "")
foreach(folder core autograd nn)
  file(GLOB_RECURSE headers RELATIVE ${GRADUS_SOURCE_DIR} ${GRADUS_SOURCE_DIR}/${folder}/*.h)
  foreach(header IN LISTS headers)
    if(NOT EXISTS ${WORK_DIR}/prefix/include/gradus/${header} AND NOT header IN_LIST PRIVATE_HEADERS)
      list(APPEND forgotten ${header})
    endif()
  endforeach()
endforeach()
if(forgotten)
  message(FATAL_ERROR "neither public nor private in scripts/cmake/GradusInstall.cmake: ${forgotten}")
endif()

execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK_DIR}/build -G ${GENERATOR}
          -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${CXX_LAUNCHER}
          -DADD_AN_OP=${GRADUS_SOURCE_DIR}/examples/add_an_op.cpp
          -DQUICKSTART=${GRADUS_SOURCE_DIR}/examples/quickstart.cpp -DCMAKE_BUILD_TYPE=Debug -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK_DIR}/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK_DIR}/build/consumer COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK_DIR}/build/add_an_op COMMAND_ERROR_IS_FATAL ANY)
