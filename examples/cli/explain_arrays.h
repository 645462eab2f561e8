// Named arrays of files: what `gradus explain --values`, --check and --save read and write.
//
//   x dy gamma beta running_mean running_var    the input
//   dx dgamma dbeta                             a claimed gradient
//   groups axes eps training size alpha k       the setting, one number each; beta is one of them
//                                               for local_response_norm
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "autograd/explain/diagnosis.h"

namespace gradus::cli {

using Arrays = std::map<std::string, Tensor, std::less<>>;

// Of "NAME=FILE.npy", "FILE.npy" or "FILE.npz": the file. NAME= with a slash in it is part of the
// file's name, and so it is where there is a file of the whole name: lr=0.1/x.npy.
std::string path_of(const std::string& file);

// Each file is an npz file or NAME=FILE.npy; a plain FILE.npy is x. Integers become f64. Throws io
// and invalid_argument, for tensors that the layer does not have and for names that stand in two
// files, too; another layer's options are no error.
Arrays read_arrays(const std::vector<std::string>& files, explain::Layer layer);

// What a number of the setting, in a file or as an option, may be at most.
inline constexpr int64_t kMostOfSetting = 1'000'000'000;

// Takes what the arrays say of the setting, but for what was `given` on the command line.
void take_setting(const Arrays& arrays, const std::set<std::string>& given,
                  explain::Setting& setting);

// In f64; gamma and the like may have axes of extent 1 around theirs.
explain::Inputs inputs_of(const Arrays& arrays, const explain::Setting& setting);
explain::Claim claim_of(const Arrays& arrays);

// Writes the input and the setting as npz.
void save_inputs(const std::string& path, const explain::Setting& setting,
                 const explain::Inputs& inputs);

}  // namespace gradus::cli
