#include "core/ops/matmul.h"

#include <cublasLt.h>

#include <compare>
#include <map>

#include "cuda/check.h"
#include "cuda/context.h"
#include "cuda/plan.h"

namespace gradus {
namespace {

// ---- bias, where cuBLASLt cannot add it ---------------------------------------------------------

constexpr int kBiasRows = 8;

// math:  y[i, j] = product[i, j] + bias[j], rounded once; an absent operand counts as 0
// grid:  1-D, one warp per row of y, stepping over the grid
// bytes: fewest = actual: product read once, y written once; bias stays in the first cache
// order: none; y may be the product itself
template <class Y, class Acc>
__global__ void __launch_bounds__(32 * kBiasRows)
    matmul_add_bias_warp_per_row(Y* y, const Acc* product, const Acc* bias, int64_t rows,
                                 int64_t n) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kBiasRows;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kBiasRows + threadIdx.y; i < rows;
       i += step) {
    for (int64_t j = threadIdx.x; j < n; j += 32) {
      const Acc value = product == nullptr ? Acc(0) : product[i * n + j];
      y[i * n + j] = static_cast<Y>(bias == nullptr ? value : value + bias[j]);
    }
  }
}

template <class Y, class Acc>
void add_bias(Cuda& cuda, Y* y, const Acc* product, const Acc* bias, int64_t rows, int64_t n) {
  matmul_add_bias_warp_per_row<<<stepping_blocks(rows, kBiasRows), dim3(32, kBiasRows), 0,
                                 cuda.stream()>>>(y, product, bias, rows, n);
}

// ---- cuBLASLt -----------------------------------------------------------------------------------

// Everything that the choice of an algorithm depends on, so that equal problems get equal bits.
struct Problem {
  int device = 0;
  DType dtype = DType::f32;    // of a and b
  DType y_dtype = DType::f32;  // of the product
  bool tf32 = false;
  bool has_bias = false;  // in the epilogue
  bool a_transposed = false, b_transposed = false;
  int64_t batch = 0, m = 0, n = 0, k = 0;
  int64_t a_ld = 0, b_ld = 0, a_batch_stride = 0, b_batch_stride = 0;
  uint32_t a_alignment = 0, b_alignment = 0, y_alignment = 0;  // bytes
  auto operator<=>(const Problem&) const = default;
};

// A problem as cuBLASLt describes it. Its matrices are column-major, so that it is given
// yᵀ[n,m] = bᵀ[n,k]·aᵀ[k,m]: its A is b and its B is a.
struct Described {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, y;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace = 0;
};

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return CUDA_R_64F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

cublasComputeType_t compute_type(const Problem& p) {
  if (p.dtype == DType::f64) return CUBLAS_COMPUTE_64F;
  return p.dtype == DType::f32 && p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

template <class T>
void set(cublasLtMatmulDescOpaque_t& desc, cublasLtMatmulDescAttributes_t attribute, T value) {
  cublas_check(cublasLtMatmulDescSetAttribute(&desc, attribute, &value, sizeof value), "matmul");
}

template <class T>
void set(cublasLtMatmulPreferenceOpaque_t& preference,
         cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  cublas_check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
               "matmul");
}

// rows x cols as stored in row-major order, or its transpose: cuBLASLt sees cols x rows or
// rows x cols in column-major order.
void describe_matrix(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, int64_t lines,
                     int64_t length, int64_t ld, int64_t batch, int64_t batch_stride) {
  cublas_check(cublasLtMatrixLayoutInit(&layout, data_type(dtype), static_cast<uint64_t>(length),
                                        static_cast<uint64_t>(lines), ld),
               "matmul");
  if (batch > INT32_MAX) {
    fail(ErrorCode::unsupported, "matmul", "at most 2^31 - 1 products at once, got ", batch);
  }
  const auto count = static_cast<int32_t>(batch);
  cublas_check(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                sizeof count),
               "matmul");
  cublas_check(
      cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                       &batch_stride, sizeof batch_stride),
      "matmul");
}

// Only schemes that add partial products in a fixed order: none, or a second pass in f32 or f64.
constexpr uint32_t kOrderedReductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
constexpr size_t kMaxWorkspace = size_t(32) << 20;

void choose_algorithm(cublasLtContext* blas, const Problem& p, Described& d) {
  cublasLtMatmulPreferenceOpaque_t preference;
  cublas_check(cublasLtMatmulPreferenceInit(&preference), "matmul");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspace);
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kOrderedReductions);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.b_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.a_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.y_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.y_alignment);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      blas, &d.product, &d.b, &d.a, &d.y, &d.y, &preference, 1, &result, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) {
    fail(ErrorCode::unsupported, "matmul", "cuBLASLt has no ordered algorithm for ", p.dtype,
         " products [", p.m, ",", p.k, "]·[", p.k, ",", p.n, "] of leading dimensions ", p.a_ld,
         " and ", p.b_ld);
  }
  cublas_check(status, "matmul");
  d.algorithm = result.algo;
  d.workspace = result.workspaceSize;
}

Described describe(cublasLtContext* blas, const Problem& p) {
  Described d{};
  const cudaDataType_t scale = p.dtype == DType::f64 ? CUDA_R_64F : CUDA_R_32F;
  cublas_check(cublasLtMatmulDescInit(&d.product, compute_type(p), scale), "matmul");
  const auto op = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(d.product, CUBLASLT_MATMUL_DESC_TRANSA, op(p.b_transposed));
  set(d.product, CUBLASLT_MATMUL_DESC_TRANSB, op(p.a_transposed));
  if (p.has_bias) set(d.product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  const auto lines = [](bool transposed, int64_t rows, int64_t cols) {
    return transposed ? std::pair(cols, rows) : std::pair(rows, cols);
  };
  const auto [a_lines, a_length] = lines(p.a_transposed, p.m, p.k);
  const auto [b_lines, b_length] = lines(p.b_transposed, p.k, p.n);
  describe_matrix(d.a, p.dtype, a_lines, a_length, p.a_ld, p.batch, p.a_batch_stride);
  describe_matrix(d.b, p.dtype, b_lines, b_length, p.b_ld, p.batch, p.b_batch_stride);
  describe_matrix(d.y, p.y_dtype, p.m, p.n, p.n, p.batch, p.m * p.n);
  choose_algorithm(blas, p, d);
  return d;
}

// The heuristic runs once per problem and thread; the steps of a training find their answer here.
const Described& described(cublasLtContext* blas, const Problem& problem) {
  thread_local std::map<Problem, Described> known;
  const auto found = known.find(problem);
  if (found != known.end()) return found->second;
  return known.emplace(problem, describe(blas, problem)).first->second;
}

uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & (~address + 1), 256));
}

Problem problem_of(Cuda& cuda, const Matmul& args, DType y_dtype, bool has_bias) {
  const MatrixLayout a = matrix_layout(args.a, Matmul::name);
  const MatrixLayout b = matrix_layout(args.b, Matmul::name);
  return {.device = cuda.index(),
          .dtype = args.a.dtype,
          .y_dtype = y_dtype,
          .tf32 = args.tf32,
          .has_bias = has_bias,
          .a_transposed = a.transposed,
          .b_transposed = b.transposed,
          .batch = a.batch,
          .m = a.rows,
          .n = b.cols,
          .k = a.cols,
          .a_ld = a.ld,
          .b_ld = b.ld,
          .a_batch_stride = a.batch_stride,
          .b_batch_stride = b.batch_stride,
          .a_alignment = alignment_of(args.a.data),
          .b_alignment = alignment_of(args.b.data)};
}

// y = a·b (+ bias, in the epilogue), with `workspace` as scratch memory.
void multiply(Cuda& cuda, const Matmul& args, const Described& known, const void* bias, void* y,
              void* workspace) {
  Described d = known;
  if (bias != nullptr) set(d.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const float one = 1, zero = 0;
  const double one64 = 1, zero64 = 0;
  const bool is_f64 = args.a.dtype == DType::f64;
  const void* alpha = is_f64 ? static_cast<const void*>(&one64) : &one;
  const void* beta = is_f64 ? static_cast<const void*>(&zero64) : &zero;
  cublas_check(
      cublasLtMatmul(cuda.blas(), &d.product, alpha, args.b.data, &d.b, args.a.data, &d.a, beta, y,
                     &d.y, y, &d.y, &d.algorithm, workspace, d.workspace, cuda.stream()),
      "matmul");
}

// y = product + bias, where the product is not given or the epilogue could not add the bias.
template <class T>
void finish(Cuda& cuda, const Matmul& args, const acc_t<T>* product) {
  using Acc = acc_t<T>;
  const int64_t n = args.y.shape[args.y.shape.rank() - 1], rows = args.y.numel() / n;
  const Acc* bias = args.bias.as<Acc>();
  if (args.y.dtype == dtype_of<Acc>) {
    add_bias(cuda, args.y.as<Acc>(), product, bias, rows, n);
  } else {
    add_bias(cuda, args.y.as<T>(), product, bias, rows, n);
  }
}

template <class T>
void run_typed(Cuda& cuda, const Matmul& args) {
  using Acc = acc_t<T>;
  if (args.a.numel() == 0) return finish<T>(cuda, args, nullptr);  // k = 0
  const bool in_epilogue =
      args.bias && args.a.dtype == DType::f32 && alignment_of(args.bias.data) >= 16;
  // A bias is added to the unrounded product, which for 16-bit results lies in the workspace.
  const bool aside = args.bias && args.y.dtype != dtype_of<Acc>;
  Problem problem = problem_of(cuda, args, aside ? dtype_of<Acc> : args.y.dtype, in_epilogue);
  problem.y_alignment = aside ? 256 : alignment_of(args.y.data);
  const Described& known = described(cuda.blas(), problem);
  const size_t scratch = (known.workspace + 255) / 256 * 256;
  const size_t product_bytes = aside ? static_cast<size_t>(args.y.numel()) * sizeof(Acc) : 0;
  char* memory = static_cast<char*>(cuda.workspace(scratch + product_bytes));
  void* y = aside ? memory + scratch : args.y.data;
  multiply(cuda, args, known, in_epilogue ? args.bias.data : nullptr, y, memory);
  if (args.bias && !in_epilogue) finish<T>(cuda, args, static_cast<const Acc*>(y));
}

}  // namespace

void run(Cuda& cuda, const Matmul& args) {
  if (args.y.numel() == 0) return;
  visit(Floating{}, args.a.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    run_typed<T>(cuda, args);
  });
}

}  // namespace gradus
