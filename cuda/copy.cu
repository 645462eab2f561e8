#include "core/ops/copy.h"

#include <cstring>
#include <optional>

#include "cuda/check.h"
#include "cuda/context.h"
#include "cuda/device/strided.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/map_plan.h"
#include "cuda/transpose.cuh"

namespace gradus {
namespace {

template <class To, class From>
struct ConvertElement {
  To* y;
  const From* x;
  __device__ void operator()(const StridedOffsets<2>& at) const {
    y[at.at[0]] = convert_to<To>(x[at.at[1]]);
  }
};

template <class Word>
struct FillElement {
  Word* y;
  Word value;
  __device__ void operator()(const StridedOffsets<1>& at) const { y[at.at[0]] = value; }
};

// Both sides without gaps and in one order, N elements per thread.
// needs: count a multiple of N; x and y aligned to N elements
template <int N, class To, class From>
__global__ void __launch_bounds__(kElementThreads)
    convert_flat(To* __restrict__ y, const From* __restrict__ x, int64_t packs) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs;
       i += step) {
    const Pack<From, N> from = load_pack<N>(x + i * N);
    Pack<To, N> to;
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = convert_to<To>(from[j]);
    store_pack(y + i * N, to);
  }
}

// needs: count a multiple of N; y aligned to 16 bytes
template <class Word>
__global__ void __launch_bounds__(kElementThreads)
    fill_flat(Word* __restrict__ y, Word value, int64_t packs) {
  constexpr int N = kFullPack<Word>;
  Pack<Word, N> pack;
#pragma unroll
  for (int j = 0; j < N; ++j) pack[j] = value;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs;
       i += step) {
    store_pack(y + i * N, pack);
  }
}

// Both sides step through the innermost axis of y by 1, or x repeats one element along it, as a
// gradient does that comes from a sum: y in packs of 16 bytes.
struct PackedRows {
  StridedPlan<2> rows = {};   // offsets of a row in y and in x
  StridedPlan<2> packs = {};  // the same walk, one pack at a time
  int64_t per_row = 0;        // packs
  bool repeats = false;       // x has one element per row
};

template <class Word, bool kRepeats>
__device__ __forceinline__ Pack<Word, kFullPack<Word>> read_pack(const Word* x) {
  if constexpr (kRepeats) {
    return repeat_pack<kFullPack<Word>>(*x);
  } else {
    return load_pack<kFullPack<Word>>(x);
  }
}

// grid:  1-D, any number of blocks; a thread takes single packs
// bytes: fewest = actual
template <class Word, bool kRepeats>
__global__ void __launch_bounds__(kElementThreads)
    copy_packs(Word* __restrict__ y, const Word* __restrict__ x,
               const __grid_constant__ StridedPlan<2> packs) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs.count;
       i += step) {
    const StridedOffsets<2> at = packs.offsets(i);
    store_pack(y + at.at[0], read_pack<Word, kRepeats>(x + at.at[1]));
  }
}

// grid:  1-D, a block per row, so that no thread divides an index per pack
// bytes: fewest = actual
template <class Word, bool kRepeats>
__global__ void __launch_bounds__(kElementThreads)
    copy_packed_rows(Word* __restrict__ y, const Word* __restrict__ x,
                     const __grid_constant__ StridedPlan<2> rows, int per_row) {
  constexpr int N = kFullPack<Word>;
  const StridedOffsets<2> at = rows.offsets(blockIdx.x);
  Word* to = y + at.at[0];
  const Word* from = x + at.at[1];
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < per_row; i += static_cast<int>(blockDim.x)) {
    store_pack(to + i * N, read_pack<Word, kRepeats>(kRepeats ? from : from + i * N));
  }
}

// y repeats packs of x along an axis outside the innermost, as a gradient does that comes from a
// sum over channels.
struct RepeatedPacks {
  StridedPlan<2> packs = {};  // the walk without that axis, one pack at a time
  int64_t count = 0;          // extent of that axis
  int64_t stride = 0;         // and its stride in y
  Chunks chunks = {};         // of that axis, one for a thread
};

// grid:  1-D, the chunks of rows of a tile of packs side by side, so that what they share is in L2
// bytes: fewest = actual, but for one read of a pack per chunk
template <class Word>
__global__ void __launch_bounds__(kElementThreads)
    copy_repeated_packs(Word* __restrict__ y, const Word* __restrict__ x,
                        const __grid_constant__ RepeatedPacks plan) {
  const auto chunks = static_cast<uint32_t>(plan.chunks.count);
  const int64_t tile = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  const int64_t pack = tile * kElementThreads + threadIdx.x;
  if (pack >= plan.packs.count) return;
  const StridedOffsets<2> at = plan.packs.offsets(pack);
  const uint4 word = *reinterpret_cast<const uint4*>(x + at.at[1]);
  const int64_t begin = chunk * plan.chunks.size, end = min(begin + plan.chunks.size, plan.count);
  Word* to = y + at.at[0] + begin * plan.stride;
#pragma unroll 8
  for (int64_t row = begin; row < end; ++row, to += plan.stride) {
    __stcs(reinterpret_cast<uint4*>(to), word);  // L2 keeps x rather than y
  }
}

// The walk in packs of `width` elements, if y and x can be accessed so.
std::optional<PackedRows> plan_packs(const StridedPlan<2>& plan, const Copy& args, int64_t width) {
  const int last = plan.rank - 1;
  if (plan.rank == 0 || plan.extents[last] % width != 0) return {};
  PackedRows result{.per_row = plan.extents[last] / width, .repeats = plan.strides[1][last] == 0};
  const void* x = result.repeats ? args.y.data : args.x.data;
  if (plan.strides[0][last] != 1 || plan.strides[1][last] > 1 ||
      pack_width(size_of(args.y.dtype), {args.y.data, x}, {}) != width) {
    return {};
  }
  Shape extents;
  std::array<Strides, 2> strides;
  for (int axis = 0; axis < last; ++axis) {
    const int64_t in_y = plan.strides[0][axis], in_x = plan.strides[1][axis];
    if (in_y % width != 0 || (!result.repeats && in_x % width != 0)) return {};
    extents.append(plan.extents[axis]);
    strides[0].append(in_y);
    strides[1].append(in_x);
  }
  result.rows = StridedPlan<2>(extents, strides);
  extents.append(result.per_row);
  strides[0].append(width);
  strides[1].append(result.repeats ? 0 : width);
  result.packs = StridedPlan<2>(extents, strides);
  return result;
}

// The longest axis along which packs repeat, if there are many packs to repeat.
std::optional<RepeatedPacks> plan_repeated(const StridedPlan<2>& packs) {
  int longest = -1;
  for (int axis = 0; axis < packs.rank; ++axis) {
    if (packs.strides[1][axis] != 0) continue;
    if (longest < 0 || packs.extents[axis] > packs.extents[longest]) longest = axis;
  }
  if (longest < 0 || packs.extents[longest] < 16) return {};
  Shape extents;
  std::array<Strides, 2> strides;
  for (int axis = 0; axis < packs.rank; ++axis) {
    if (axis == longest) continue;
    extents.append(packs.extents[axis]);
    for (size_t t = 0; t < 2; ++t) strides[t].append(packs.strides[t][axis]);
  }
  RepeatedPacks result{.packs = StridedPlan<2>(extents, strides),
                       .count = packs.extents[longest],
                       .stride = packs.strides[0][longest]};
  if (result.packs.count < 64 * kElementThreads) return {};
  result.chunks = plan_repeats(result.count, ceil_div(result.packs.count, kElementThreads));
  return result;
}

template <class Word>
void copy_repeated(Cuda& cuda, Word* y, const Word* x, const RepeatedPacks& plan) {
  const int64_t blocks = ceil_div(plan.packs.count, kElementThreads) * plan.chunks.count;
  copy_repeated_packs<Word>
      <<<exact_blocks(blocks, "copy"), kElementThreads, 0, cuda.stream()>>>(y, x, plan);
}

template <class Word, bool kRepeats>
void copy_packed(Cuda& cuda, Word* y, const Word* x, const PackedRows& plan) {
  const bool by_rows = plan.per_row >= 128 && plan.per_row <= 8192 && plan.rows.count <= kMaxGridX;
  if (by_rows) {
    // Four packs per thread, whole warps.
    const int64_t threads = std::min<int64_t>(kElementThreads, ceil_div(plan.per_row, 128) * 32);
    copy_packed_rows<Word, kRepeats>
        <<<exact_blocks(plan.rows.count, "copy"), static_cast<unsigned>(threads), 0,
           cuda.stream()>>>(y, x, plan.rows, static_cast<int>(plan.per_row));
  } else {
    copy_packs<Word, kRepeats>
        <<<stepping_blocks(plan.packs.count, kElementThreads), kElementThreads, 0, cuda.stream()>>>(
            y, x, plan.packs);
  }
}

// The transpose that a copy is, if it is one with both sides long enough for tiles.
std::optional<Transpose> plan_transpose(const StridedPlan<2>& plan) {
  constexpr int64_t least = kTransposeSide / 2;
  const int last = plan.rank - 1;
  if (plan.rank < 2 || plan.strides[0][last] != 1 || plan.extents[last] < least) return {};
  for (int axis = 0; axis < last; ++axis) {
    if (plan.strides[1][axis] != 1 || plan.extents[axis] < least) continue;
    Shape batch;
    std::array<Strides, 2> strides;
    for (int other = 0; other < last; ++other) {
      if (other == axis) continue;
      batch.append(plan.extents[other]);
      for (int t = 0; t < 2; ++t) strides[t].append(plan.strides[t][other]);
    }
    return Transpose{.rows = plan.extents[last],
                     .columns = plan.extents[axis],
                     .x_row_stride = plan.strides[1][last],
                     .y_column_stride = plan.strides[0][axis],
                     .batch = StridedPlan<2>(batch, strides)};
  }
  return {};
}

// Elements of one size move as words, whatever their dtype.
template <class Word>
void copy_words(Cuda& cuda, const Copy& args, const StridedPlan<2>& plan) {
  Word* y = static_cast<Word*>(args.y.data);
  const Word* x = static_cast<const Word*>(args.x.data);
  if (plan.flat) {
    const auto bytes = static_cast<size_t>(plan.count) * sizeof(Word);
    cuda_check(cuda, cudaMemcpyAsync(y, x, bytes, cudaMemcpyDeviceToDevice, cuda.stream()), "copy");
  } else if (const auto packs = plan_packs(plan, args, kFullPack<Word>)) {
    if (packs->repeats) {
      copy_packed<Word, true>(cuda, y, x, *packs);
    } else if (const auto repeated = plan_repeated(packs->packs)) {
      copy_repeated(cuda, y, x, *repeated);
    } else {
      copy_packed<Word, false>(cuda, y, x, *packs);
    }
  } else if (const auto turned = plan_transpose(plan)) {
    transpose(cuda, "copy", y, x, *turned);
  } else {
    for_each_element<<<stepping_blocks(plan.count, kElementThreads), kElementThreads, 0,
                       cuda.stream()>>>(plan, ConvertElement<Word, Word>{y, x});
  }
}

template <class To, class From>
void copy_converted(Cuda& cuda, const Copy& args, const StridedPlan<2>& plan) {
  constexpr int N = 16 / static_cast<int>(std::max(sizeof(To), sizeof(From)));
  To* y = args.y.as<To>();
  const From* x = args.x.as<From>();
  const bool packs = plan.count % N == 0 && pack_width(sizeof(To), {y}, {}) >= N &&
                     pack_width(sizeof(From), {x}, {}) >= N;
  if (plan.flat && packs) {
    const int64_t count = plan.count / N;
    convert_flat<N><<<stepping_blocks(count, kElementThreads), kElementThreads, 0, cuda.stream()>>>(
        y, x, count);
  } else {
    for_each_element<<<stepping_blocks(plan.count, kElementThreads), kElementThreads, 0,
                       cuda.stream()>>>(plan, ConvertElement<To, From>{y, x});
  }
}

}  // namespace

void run(Cuda& cuda, const Copy& args) {
  const StridedPlan<2> plan(args.y.shape, {args.y.strides, args.x.strides});
  if (plan.count == 0) return;
  visit(AllTypes{}, args.y.dtype, [&](auto to) {
    using To = typename decltype(to)::type;
    if (args.x.dtype == args.y.dtype) {
      return copy_words<word_t<static_cast<int>(sizeof(To))>>(cuda, args, plan);
    }
    visit(AllTypes{}, args.x.dtype, [&](auto from) {
      using From = typename decltype(from)::type;
      if constexpr (!std::is_same_v<To, From>) copy_converted<To, From>(cuda, args, plan);
    });
  });
}

void run(Cuda& cuda, const Fill& args) {
  const StridedPlan<1> plan(args.y.shape, {args.y.strides});
  if (plan.count == 0) return;
  visit(AllTypes{}, args.y.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Word = word_t<static_cast<int>(sizeof(T))>;
    constexpr int N = kFullPack<Word>;
    const T value = convert_to<T>(args.value);
    Word word;
    std::memcpy(&word, &value, sizeof word);
    Word* y = static_cast<Word*>(args.y.data);
    if (plan.flat && plan.count % N == 0 && pack_width(sizeof(Word), {y}, {}) == N) {
      const int64_t packs = plan.count / N;
      fill_flat<<<stepping_blocks(packs, kElementThreads), kElementThreads, 0, cuda.stream()>>>(
          y, word, packs);
    } else {
      for_each_element<<<stepping_blocks(plan.count, kElementThreads), kElementThreads, 0,
                         cuda.stream()>>>(plan, FillElement<Word>{y, word});
    }
  });
}

}  // namespace gradus
