# Included by ctest: adds a test per program and label. The label is cuda for tests with Cuda in their
# names, cpu for all others; with Slow in their names cuda-slow or cpu-slow, which the patterns of
# `ctest -L cpu` and `-LE slow` both match. Not a test per test: thousands of processes take longer to
# start than what they test.
set(filter_of_cpu "-*Cuda*:*Slow*")
set(filter_of_cuda "*Cuda*-*Slow*")
set(filter_of_cpu-slow "*Slow*-*Cuda*")
set(filter_of_cuda-slow "*Cuda*Slow*:*Slow*Cuda*")

# The labels of a program's tests, asked of it once it has changed.
function(gradus_find_labels program)
  set(file ${program}.labels)
  if(NOT EXISTS ${file} OR NOT ${file} IS_NEWER_THAN ${program})
    execute_process(COMMAND ${program} --gtest_list_tests OUTPUT_VARIABLE listed
                    COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX REPLACE " *#[^\n]*" "" listed "${listed}")  # parameters' values
    string(REGEX MATCHALL "[^\n]+" listed "${listed}")
    set(labels "")
    foreach(line IN LISTS listed)
      if(NOT line MATCHES "^ ")
        set(suite ${line})  # its tests follow, indented
        continue()
      endif()
      set(label cpu)
      if("${suite}${line}" MATCHES "Cuda")
        set(label cuda)
      endif()
      if("${suite}${line}" MATCHES "Slow")
        string(APPEND label -slow)
      endif()
      list(APPEND labels ${label})
    endforeach()
    list(REMOVE_DUPLICATES labels)
    file(WRITE ${file} "${labels}")
  endif()
  file(READ ${file} labels)
  set(labels "${labels}" PARENT_SCOPE)
endfunction()

execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE no_gpu OUTPUT_QUIET ERROR_QUIET)

# NAME, of label cpu, or NAME.cuda, NAME.cpu-slow and NAME.cuda-slow.
function(gradus_add_program name program)
  if(NOT EXISTS ${program})
    add_test(${name} ${program})  # fails: it was not built
    return()
  endif()
  gradus_find_labels(${program})
  foreach(label IN LISTS labels)
    set(test ${name}.${label})
    if(label STREQUAL cpu)
      set(test ${name})
    endif()
    add_test(${test} ${program} --gtest_brief=1 "--gtest_filter=${filter_of_${label}}")
    set_tests_properties(${test} PROPERTIES LABELS ${label})
    if(label MATCHES cuda)
      set_tests_properties(${test} PROPERTIES RESOURCE_LOCK gpu)
      if(NOT no_gpu EQUAL 0)
        set_tests_properties(${test} PROPERTIES DISABLED ON)
      endif()
    endif()
  endforeach()
endfunction()
