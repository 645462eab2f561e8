# Included by ctest after each program's list of tests: those with Cuda in their name get the label
# cuda, all others cpu; with Slow in their name cuda-slow or cpu-slow, which the patterns of
# `ctest -L cpu` and `-LE slow` both match.
foreach(test IN LISTS gradus_found)
  set(label cpu)
  if(test MATCHES "Cuda")
    set(label cuda)
    set_tests_properties(${test} PROPERTIES RESOURCE_LOCK gpu)
  endif()
  if(test MATCHES "Slow")
    string(APPEND label -slow)
  endif()
  set_tests_properties(${test} PROPERTIES LABELS ${label})
endforeach()
