# Sourced by scripts/train, scripts/test and .ci/run: installs what is missing and builds.
# shellcheck shell=bash

root=$(CDPATH="" cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=$(nproc 2>/dev/null || echo 2)

# What a build needs: the package's name in Debian 12 and Ubuntu 24.04, and the command or file by
# which it is recognised, wherever that came from.
# shellcheck disable=SC2034  # read by the scripts that source this file
packages=(
  "g++                    g++"
  "cmake                  cmake"
  "ninja-build            ninja"
  "libeigen3-dev          /usr/include/eigen3/Eigen/Core"
  "libfmt-dev             /usr/include/fmt/core.h"
  "nlohmann-json3-dev     /usr/include/nlohmann/json.hpp"
  "zlib1g-dev             /usr/include/zlib.h"
  "libzip-dev             /usr/include/zip.h"
  "libcli11-dev           /usr/include/CLI/CLI.hpp"
  "libgtest-dev           /usr/include/gtest/gtest.h"
  "dataset-fashion-mnist  /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz"
)

say() { printf 'gradus: %s\n' "$*"; }
die() {
  printf 'gradus: %s\n' "$*" >&2
  exit 1
}

present() {
  case $1 in
    /*) [[ -e $1 ]] ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# install_missing "PACKAGE PROBE"...: installs the packages whose probe is absent.
install_missing() {
  local entry package probe missing=() as_root=()
  for entry in "$@"; do
    read -r package probe <<<"$entry"
    present "$probe" || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if ! command -v apt-get >/dev/null; then
    die "these Debian packages, or what they hold, are missing, and there is no apt-get here:" \
      "${missing[*]}"
  fi
  if [[ $(id -u) -ne 0 ]]; then
    command -v sudo >/dev/null ||
      die "missing packages, and neither root nor sudo: as root, run" \
        "apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  as_root+=(env DEBIAN_FRONTEND=noninteractive)
  "${as_root[@]}" apt-get update -q || say "apt-get update failed; trying with the lists at hand"
  "${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" ||
    die "could not install: ${missing[*]}"
}

# build FOLDER TARGET [CMAKE OPTIONS...]: configures FOLDER as Release, unless it is already
# configured otherwise, and builds TARGET. GRADUS_CUDA=AUTO, ON or OFF chooses the CUDA backend,
# which takes most of the time: without a GPU it is left out if nothing is said.
build() {
  local folder=$1 target=$2 cuda=${GRADUS_CUDA:-}
  shift 2
  local options=(-S "$root" -B "$folder" "$@")
  if [[ ! -e $folder/CMakeCache.txt ]]; then
    options+=(-DCMAKE_BUILD_TYPE=Release)
    ! command -v ninja >/dev/null || options+=(-G Ninja)
    if [[ -z $cuda ]] && ! nvidia-smi -L >/dev/null 2>&1; then
      say "no GPU here: building without the CUDA backend (GRADUS_CUDA=AUTO builds it)"
      cuda=OFF
    fi
  fi
  [[ -z $cuda ]] || options+=("-DGRADUS_CUDA=$cuda")
  say "building $target in $folder"
  cmake "${options[@]}" || die "the configuration failed"
  cmake --build "$folder" --target "$target" --parallel "$jobs" || die "the build failed"
}
