# `cmake --install`: the library, its public headers, the program and what find_package(gradus)
# needs. Headers of ops are added by gradus_add_op(); tests/consumer fails when one is forgotten.

target_sources(gradus PUBLIC
  FILE_SET generated TYPE HEADERS BASE_DIRS ${PROJECT_BINARY_DIR}/generated
  FILES ${PROJECT_BINARY_DIR}/generated/core/build_config.h
  FILE_SET HEADERS
  FILES
    core/autotune.h
    core/backend.h
    core/box_muller.h
    core/device.h
    core/dtype.h
    core/error.h
    core/fault.h
    core/generator.h
    core/half.h
    core/host_device.h
    core/launch.h
    core/random.h
    core/shape.h
    core/storage.h
    core/tensor.h
    core/tolerance.h
    core/trace.h
    core/trace_pause.h
    core/view.h
    core/ops/normal_tail.h
    core/ops/normalization.h
    core/ops/activation_functions.h
    core/ops/activation_math.h
    core/ops/partial.h
    core/ops/reduction.h
    core/ops/reductions.h
    core/ops/window.h
    autograd/autocast.h
    autograd/explain/derivation.h
    autograd/explain/diagnosis.h
    autograd/explain/setting.h
    autograd/gradcheck.h
    autograd/grad_mode.h
    autograd/node.h
    autograd/ops/norm_terms.h
    autograd/saved.h
    autograd/tape.h
    cpu/context.h
    cpu/host_allocator.h
    cuda/context.h
    cuda/graph.h
    nn/autotune_file.h
    nn/capture.h
    nn/checkpoint.h
    nn/compare/compare.h
    nn/compare/lock_step.h
    nn/compare/report.h
    nn/data/image_set.h
    nn/data/loader.h
    nn/evaluation.h
    nn/finite_check.h
    nn/flatten.h
    nn/forward_observer.h
    nn/init.h
    nn/io/npy.h
    nn/io/npz.h
    nn/io/safetensors.h
    nn/linear.h
    nn/loss.h
    nn/model_file.h
    nn/models.h
    nn/module.h
    nn/optim/adam.h
    nn/optim/clip_grad.h
    nn/optim/muon.h
    nn/optim/optimizer.h
    nn/optim/schedule.h
    nn/optim/sgd.h
    nn/precision.h
    nn/sequential.h
    nn/trainer.h
)

# Headers of core/, autograd/ and nn/ that stay inside.
set(GRADUS_PRIVATE_HEADERS
  autograd/explain/claimed.h
  autograd/explain/factors.h
  autograd/explain/fit.h
  autograd/explain/judge.h
  autograd/explain/library.h
  autograd/explain/precisions.h
  autograd/explain/rounding.h
  autograd/explain/slips.h
  autograd/explain/steps.h
  autograd/ops/class_labels.h
  autograd/ops/per_channel.h
  autograd/ops/row_norm.h
  autograd/ops/group_norm_node.h
  autograd/ops/axis_set.h
  core/share_memory.h
  nn/compare/differences.h
  nn/compare/layer.h
  nn/compare/layer_time.h
  nn/compare/loss_layer.h
  nn/compare/measure.h
  nn/compare/numbers.h
  nn/compare/module_layer.h
  nn/compare/optimizer_layer.h
  nn/compare/recording.h
  nn/compare/roofs.h
  nn/compare/timer.h
  nn/data/cifar10.h
  nn/data/idx.h
  nn/host_copy.h
  nn/io/atomic_file.h
  nn/io/byte_count.h
  nn/io/file_descriptor.h
  nn/io/fingerprint.h
  nn/io/input_file.h
  nn/io/npy_bytes.h
  nn/io/safetensors_checksum.h
  nn/io/safetensors_dtype.h
  nn/io/tensor_bytes.h
  nn/match.h
)

include(GNUInstallDirs)
if(NOT GRADUS_INSTALL)
  return()  # from this file
endif()
include(CMakePackageConfigHelpers)
set(GRADUS_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/gradus)
set_target_properties(gradus PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)  # to CUDA's libraries
install(TARGETS gradus EXPORT gradusTargets
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gradus
        FILE_SET generated DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gradus)
install(EXPORT gradusTargets NAMESPACE gradus:: DESTINATION ${GRADUS_PACKAGE_DIR})
configure_package_config_file(scripts/cmake/gradusConfig.cmake.in
  ${PROJECT_BINARY_DIR}/generated/gradusConfig.cmake INSTALL_DESTINATION ${GRADUS_PACKAGE_DIR})
# Before 1.0 a minor version may break what an earlier one promised.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/gradusConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/gradusConfig.cmake
              ${PROJECT_BINARY_DIR}/generated/gradusConfigVersion.cmake
              scripts/cmake/FindLibZip.cmake
        DESTINATION ${GRADUS_PACKAGE_DIR})
# Not CMAKE_INSTALL_DOCDIR, which is the parent's where that has included GNUInstallDirs.
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/gradus)
