#include "core/ops/copy.h"

#include <cstring>
#include <optional>

#include "cuda/check.h"
#include "cuda/context.h"
#include "cuda/copy_plan.h"
#include "cuda/device/strided.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/plan.h"
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

// Both sides without gaps and in one order, N elements per thread; the first block also takes those
// that fill no pack.
// needs: x and y aligned to N elements
template <int N, class To, class From>
__global__ void __launch_bounds__(kElementThreads)
    convert_flat(To* __restrict__ y, const From* __restrict__ x, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x, packs = count / N;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t rest = packs * N + i;
  for (; i < packs; i += step) {
    const Pack<From, N> from = load_pack<N>(x + i * N);
    Pack<To, N> to;
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = convert_to<To>(from[j]);
    store_pack(y + i * N, to);
  }
  if (rest < count) y[rest] = convert_to<To>(x[rest]);
}

// The same for one value.
// needs: y aligned to 16 bytes
template <class Word>
__global__ void __launch_bounds__(kElementThreads)
    fill_flat(Word* __restrict__ y, Word value, int64_t count) {
  constexpr int N = kFullPack<Word>;
  const Pack<Word, N> pack = repeat_pack<N>(value);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x, packs = count / N;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t rest = packs * N + i;
  for (; i < packs; i += step) store_pack(y + i * N, pack);
  if (rest < count) y[rest] = value;
}

// A pack of x by plan_packs; one element repeated, as in a gradient that comes from a sum.
template <class Word, bool kRepeats>
__device__ __forceinline__ Pack<Word, kFullPack<Word>> read_pack(const Word* x) {
  if constexpr (kRepeats) {
    return repeat_pack<kFullPack<Word>>(*x);
  } else {
    return load_pack<kFullPack<Word>>(x);
  }
}

// grid:  1-D; a pack per thread, which stores it kRows times, `row` elements apart
// bytes: fewest = actual; what x repeats comes from L2
template <class Word, bool kRepeats, int kRows>
__global__ void __launch_bounds__(kElementThreads)
    copy_pack_axes(Word* __restrict__ y, const Word* __restrict__ x,
                   const __grid_constant__ PackAxes<2> axes, uint32_t packs, int64_t row) {
  const uint32_t i = blockIdx.x * kElementThreads + threadIdx.x;
  if (i >= packs) return;
  const StridedOffsets<2> at = axes.offsets(i);
  const Pack<Word, kFullPack<Word>> pack = read_pack<Word, kRepeats>(x + at.at[1]);
  uint4 word;
  memcpy(&word, &pack, sizeof word);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {  // L2 keeps what x repeats rather than y
    __stcs(reinterpret_cast<uint4*>(y + at.at[0] + r * row), word);
  }
}

// The same along any number of axes.
// grid:  1-D, any number of blocks
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

// The same where packs of y lie in two rows of x, as in the gradient of a sum over planes of 7 x 7.
// grid:  1-D, a pack per thread
// bytes: fewest = actual; x from L1 and L2
// needs: fills_packs(plan)
template <class Word, bool kRepeats>
__global__ void __launch_bounds__(kElementThreads)
    copy_filling_packs(Word* __restrict__ y, const Word* __restrict__ x,
                       const __grid_constant__ PackAxes<2> axes, uint32_t count) {
  constexpr uint32_t N = kFullPack<Word>;
  const uint32_t first = (blockIdx.x * kElementThreads + threadIdx.x) * N;
  if (first >= count) return;
  const FastDivisor& row = axes.extents[PackAxes<2>::kAxes - 1];
  const uint32_t next = (row.quotient(first) + 1) * row.divisor;  // the first of the next row
  const Word* const from = x + axes.offsets(first).at[1];
  const Word* const from_next = x + (next < count ? axes.offsets(next).at[1] : 0);
  Pack<Word, N> pack;
#pragma unroll
  for (uint32_t j = 0; j < N; ++j) {
    const Word* const at = first + j < next ? from : from_next;
    const uint32_t skipped = first + j < next ? j : first + j - next;
    pack[j] = first + j < count ? at[kRepeats ? 0 : skipped] : Word{};
  }
  if (first + N <= count) return store_pack(y + first, pack);
  for (uint32_t j = 0; first + j < count; ++j) y[first + j] = pack[j];
}

template <class Word, bool kRepeats, int kRows>
void copy_pack_rows(Cuda& cuda, Word* y, const Word* x, const StridedPlan<2>& packs, int64_t row) {
  copy_pack_axes<Word, kRepeats, kRows>
      <<<exact_blocks(ceil_div(packs.count, kElementThreads), "copy"), kElementThreads, 0,
         cuda.stream()>>>(y, x, PackAxes<2>(packs), static_cast<uint32_t>(packs.count), row);
}

template <class Word, bool kRepeats>
void copy_packed(Cuda& cuda, Word* y, const Word* x, const StridedPlan<2>& packs) {
  if (!PackAxes<2>::take(packs)) {
    copy_packs<Word, kRepeats>
        <<<stepping_blocks(packs.count, kElementThreads), kElementThreads, 0, cuda.stream()>>>(
            y, x, packs);
    return;
  }
  if constexpr (!kRepeats) {
    if (const auto rows = plan_repeated_rows(packs)) {
      return copy_pack_rows<Word, false, kCopyRows>(cuda, y, x, rows->packs, rows->row);
    }
  }
  copy_pack_rows<Word, kRepeats, 1>(cuda, y, x, packs, 0);
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
  } else if (const auto packs = plan_packs(plan, y, x, sizeof(Word))) {
    const bool repeats = plan.strides[1][plan.rank - 1] == 0;
    (repeats ? copy_packed<Word, true> : copy_packed<Word, false>)(cuda, y, x, *packs);
  } else if (fills_packs(plan, y, sizeof(Word))) {
    const bool repeats = plan.strides[1][plan.rank - 1] == 0;
    const int64_t packs = ceil_div(plan.count, kFullPack<Word>);
    const auto kernel = repeats ? copy_filling_packs<Word, true> : copy_filling_packs<Word, false>;
    kernel<<<exact_blocks(ceil_div(packs, kElementThreads), "copy"), kElementThreads, 0,
             cuda.stream()>>>(y, x, PackAxes<2>(plan), static_cast<uint32_t>(plan.count));
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
  const bool packs = pack_width(sizeof(To), {y}, {}) >= N && pack_width(sizeof(From), {x}, {}) >= N;
  if (plan.flat && packs) {
    const unsigned blocks = stepping_blocks(plan.count / N, kElementThreads);
    convert_flat<N><<<blocks, kElementThreads, 0, cuda.stream()>>>(y, x, plan.count);
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
    if (plan.flat && pack_width(sizeof(Word), {y}, {}) == N) {
      const unsigned blocks = stepping_blocks(plan.count / N, kElementThreads);
      fill_flat<<<blocks, kElementThreads, 0, cuda.stream()>>>(y, word, plan.count);
    } else {
      for_each_element<<<stepping_blocks(plan.count, kElementThreads), kElementThreads, 0,
                         cuda.stream()>>>(plan, FillElement<Word>{y, word});
    }
  });
}

}  // namespace gradus
