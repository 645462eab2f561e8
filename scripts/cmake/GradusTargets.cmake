# The library target and gradus_add_op(), which finds the files of one op by its name.

# Not joined, even where a parent joins its own: files of one folder have helpers of equal names.
set(CMAKE_UNITY_BUILD OFF)

# Options that every target of the project is compiled with; not exported.
add_library(gradus_options INTERFACE)
target_compile_features(gradus_options INTERFACE cxx_std_20)
target_include_directories(gradus_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(gradus_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wno-missing-field-initializers>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${GRADUS_WERROR}>>:-Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra --expt-relaxed-constexpr --diag-suppress=20012>
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${GRADUS_WERROR}>>:--Werror=all-warnings>)
if(GRADUS_SANITIZE)
  target_compile_options(gradus_options INTERFACE
    -fsanitize=${GRADUS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(gradus_options INTERFACE -fsanitize=${GRADUS_SANITIZE})
endif()

if(BUILD_SHARED_LIBS)  # all of it is exported, whatever a parent has chosen for its own code
  foreach(language CXX CUDA)
    if(CMAKE_${language}_VISIBILITY_PRESET)
      set(CMAKE_${language}_VISIBILITY_PRESET default)
    endif()
  endforeach()
  set(CMAKE_VISIBILITY_INLINES_HIDDEN OFF)
endif()
add_library(gradus)  # shared or static, as BUILD_SHARED_LIBS says
add_library(gradus::gradus ALIAS gradus)
set_target_properties(gradus PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_STANDARD 20)
target_compile_features(gradus PUBLIC cxx_std_20)
target_link_libraries(gradus PRIVATE $<BUILD_INTERFACE:gradus_options> PUBLIC Threads::Threads
                      PRIVATE fmt::fmt ZLIB::ZLIB LibZip::LibZip $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)

# The OpCase lists, one file per op, used by tests, bench and compare; built for these only.
add_library(gradus_cases STATIC EXCLUDE_FROM_ALL
  bench/cases/draw.cpp bench/cases/launches.cpp bench/cases/op_case.cpp)
target_link_libraries(gradus_cases PRIVATE gradus_options PUBLIC gradus)

# cpu/ is compiled once per instruction set; cpu/dispatch.h chooses at run time.
set(isas baseline)
set(GRADUS_ISA_FLAGS_baseline "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND isas avx2 avx512)
  set(GRADUS_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
  set(GRADUS_ISA_FLAGS_avx512 -mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma -mf16c
                              -mprefer-vector-width=512)
endif()
set(GRADUS_ISAS "${isas}" CACHE STRING "Instruction sets of the CPU kernels, at least one")
set(unknown ${GRADUS_ISAS})
list(REMOVE_ITEM unknown ${isas})
if(unknown OR NOT GRADUS_ISAS)
  message(FATAL_ERROR "GRADUS_ISAS: expected some of '${isas}', got '${GRADUS_ISAS}'")
endif()
set(built "")  # weakest first, in whatever order they were given
foreach(isa IN LISTS isas)
  if(isa IN_LIST GRADUS_ISAS)
    list(APPEND built ${isa})
  endif()
endforeach()
set(GRADUS_ISAS ${built})
foreach(isa IN LISTS GRADUS_ISAS)
  add_library(gradus_cpu_${isa} OBJECT)
  set_target_properties(gradus_cpu_${isa} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(gradus_cpu_${isa} PRIVATE gradus_options Eigen3::Eigen Threads::Threads)
  # -fno-math-errno and -fno-trapping-math change no result; they let loops be vectorised.
  target_compile_options(gradus_cpu_${isa} PRIVATE ${GRADUS_ISA_FLAGS_${isa}}
    -ffp-contract=fast -fno-math-errno -fno-trapping-math -fvisibility-inlines-hidden
    # Vectors never cross a call that is not inlined; g++ 12's own AVX-512 header warns of itself.
    -Wno-psabi -Wno-maybe-uninitialized)
  target_compile_definitions(gradus_cpu_${isa} PRIVATE GRADUS_ISA=${isa} GRADUS_ISA_${isa}
                             EIGEN_DONT_PARALLELIZE)
  target_sources(gradus PRIVATE $<TARGET_OBJECTS:gradus_cpu_${isa}>)
endforeach()
list(GET GRADUS_ISAS 0 GRADUS_DISPATCHING_ISA)
list(TRANSFORM GRADUS_ISAS PREPEND GRADUS_HAS_ISA_ OUTPUT_VARIABLE has_isas)
target_compile_definitions(gradus_cpu_${GRADUS_DISPATCHING_ISA} PRIVATE GRADUS_DISPATCHES ${has_isas})
list(TRANSFORM GRADUS_ISAS PREPEND Isa:: OUTPUT_VARIABLE GRADUS_BUILT_ISAS)
list(JOIN GRADUS_BUILT_ISAS "," GRADUS_BUILT_ISAS)
set_source_files_properties(${PROJECT_SOURCE_DIR}/cpu/context.cpp PROPERTIES
  COMPILE_DEFINITIONS "GRADUS_BUILT_ISAS=${GRADUS_BUILT_ISAS}")

if(GRADUS_HAS_CUDA)
  # A shared library and the programs that use it must share one runtime.
  set(GRADUS_CUDART CUDA::cudart_static)
  if(BUILD_SHARED_LIBS)
    set(GRADUS_CUDART CUDA::cudart)
  endif()
  target_link_libraries(gradus PRIVATE ${GRADUS_CUDART} CUDA::cublasLt CUDA::nvtx3)
endif()

# gradus_add_op(NAME [CUDA FILES...]): the op's files, wherever they exist under its name, and further
# files of cuda/. A contract without a CPU or CUDA file fails at link time, since its run() is
# declared.
function(gradus_add_op op)
  cmake_parse_arguments(arg "" "" "CUDA" ${ARGN})
  if(NOT EXISTS ${PROJECT_SOURCE_DIR}/core/ops/${op}.h)
    message(FATAL_ERROR "gradus_add_op(${op}): core/ops/${op}.h, its contract, is missing")
  endif()
  foreach(file autograd/ops/${op}.cpp nn/${op}.cpp)
    if(EXISTS ${PROJECT_SOURCE_DIR}/${file})
      target_sources(gradus PRIVATE ${file})
    endif()
  endforeach()
  foreach(file core/ops/${op}.h autograd/ops/${op}.h nn/${op}.h)
    if(EXISTS ${PROJECT_SOURCE_DIR}/${file})
      target_sources(gradus PUBLIC FILE_SET HEADERS FILES ${file})
    endif()
  endforeach()
  foreach(isa IN LISTS GRADUS_ISAS)
    target_sources(gradus_cpu_${isa} PRIVATE cpu/${op}.cpp)
  endforeach()
  if(GRADUS_HAS_CUDA)
    target_sources(gradus PRIVATE cuda/${op}.cu)
    foreach(file IN LISTS arg_CUDA)
      target_sources(gradus PRIVATE cuda/${file})
    endforeach()
  endif()
  if(EXISTS ${PROJECT_SOURCE_DIR}/bench/cases/${op}.cpp)
    target_sources(gradus_cases PRIVATE bench/cases/${op}.cpp)
    set_property(GLOBAL APPEND PROPERTY GRADUS_CASES ${op})
  endif()
  if(EXISTS ${PROJECT_SOURCE_DIR}/tests/${op}_test.cpp)
    set_property(GLOBAL APPEND PROPERTY GRADUS_OP_TESTS ${op}_test)
  endif()
  set_property(GLOBAL APPEND PROPERTY GRADUS_OPS ${op})
endfunction()

# Writes gradus_contracts.inc, which includes the contract of every op, and gradus_launches.inc, a line
# GRADUS_LAUNCH(op, Struct) per argument struct, told by its member `support`.
function(gradus_list_launches)
  get_property(ops GLOBAL PROPERTY GRADUS_OPS)
  set(contracts "")
  set(launches "")
  foreach(op IN LISTS ops)
    set(path ${PROJECT_SOURCE_DIR}/core/ops/${op}.h)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    string(APPEND contracts "#include \"core/ops/${op}.h\"\n")
    file(STRINGS ${path} lines REGEX "^struct [A-Za-z0-9]+[^;]*{$|static constexpr Support support")
    foreach(line IN LISTS lines)
      if(line MATCHES "^struct ([A-Za-z0-9]+)")
        set(struct ${CMAKE_MATCH_1})
      else()
        string(APPEND launches "GRADUS_LAUNCH(${op}, ${struct})\n")
      endif()
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/gradus_contracts.inc CONTENT "${contracts}")
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/gradus_launches.inc CONTENT "${launches}")
endfunction()

# Writes what depends on the whole list of ops: build_config.h and the list of case files.
function(gradus_finish)
  gradus_list_launches()
  get_property(cases GLOBAL PROPERTY GRADUS_CASES)
  set(lines "")
  foreach(op IN LISTS cases)
    string(APPEND lines "GRADUS_CASES(${op})\n")
  endforeach()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/gradus_cases.inc CONTENT "${lines}")
  configure_file(${PROJECT_SOURCE_DIR}/scripts/cmake/build_config.h.in
                 ${PROJECT_BINARY_DIR}/generated/core/build_config.h)
  target_include_directories(gradus_options INTERFACE ${PROJECT_BINARY_DIR}/generated)
endfunction()
