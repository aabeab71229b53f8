/* A product of matrices by a BLAS, as a custom call of XLA on the CPU.
 *
 *     result (m, n) = op(left) (m, k) op(right) (k, n)      op transposes where the attribute says
 *
 * Both factors are float32, or both bfloat16; the result is float32. All matrices are row-major.
 * Rows or columns of the result, whichever are more, are divided among the threads of XLA; the BLAS
 * computes with one thread. */

#include "call_of_xla.h"

enum { LEAST_WIDTH = 64 };

static struct {
  sgemm *float32;
  bgemm *bfloat16;
} products;

/* Set the products of a BLAS whose integers have 64 bits; before any call. */
void jaxpipe_gemm_use(sgemm *float32, bgemm *bfloat16) {
  products.float32 = float32;
  products.bfloat16 = bfloat16;
}

typedef struct {
  const void *left, *right;
  float *result;
  int64_t m, n, k, left_stride, right_stride;
  bool left_is_transposed, right_is_transposed, is_bfloat16;
} product;

static void compute(const product *p, int64_t row, int64_t num_rows, int64_t column,
                    int64_t num_columns) {
  int64_t left_at = row * (p->left_is_transposed ? 1 : p->left_stride);
  int64_t right_at = column * (p->right_is_transposed ? p->right_stride : 1);
  int of_left = p->left_is_transposed ? TRANSPOSED : AS_IS;
  int of_right = p->right_is_transposed ? TRANSPOSED : AS_IS;
  float *result = p->result + row * p->n + column;
  if (p->is_bfloat16)
    products.bfloat16(ROW_MAJOR, of_left, of_right, num_rows, num_columns, p->k, 1.0f,
                      (const uint16_t *)p->left + left_at, p->left_stride,
                      (const uint16_t *)p->right + right_at, p->right_stride, 0.0f, result, p->n);
  else
    products.float32(ROW_MAJOR, of_left, of_right, num_rows, num_columns, p->k, 1.0f,
                     (const float *)p->left + left_at, p->left_stride,
                     (const float *)p->right + right_at, p->right_stride, 0.0f, result, p->n);
}

static bool compute_slice(const void *work, int64_t begin, int64_t end) {
  const product *p = work;
  if (p->m >= p->n)
    compute(p, begin, end - begin, 0, p->n);
  else
    compute(p, 0, p->m, begin, end - begin);
  return true;
}

static bool flag(const XLA_FFI_Attrs *attrs, const char *name, bool *value) {
  const bool *given = attribute(attrs, name, XLA_FFI_DataType_PRED);
  if (given != NULL) *value = *given;
  return given != NULL;
}

static bool is_matrix(const XLA_FFI_Buffer *buffer) {
  return is_array(buffer, 2) || (buffer->dtype == XLA_FFI_DataType_BF16 && buffer->rank == 2);
}

static const char *read_product(const XLA_FFI_CallFrame *frame, product *p) {
  if (frame->args.size != 2 || frame->rets.size != 1)
    return "gemm: not two factors and one result";
  const XLA_FFI_Buffer *left = frame->args.args[0], *right = frame->args.args[1];
  const XLA_FFI_Buffer *result = frame->rets.rets[0];
  if (!is_matrix(left) || !is_matrix(right) || left->dtype != right->dtype || !is_array(result, 2))
    return "gemm: factors must be matrices of float32 or of bfloat16, the result of float32";
  if (products.float32 == NULL || products.bfloat16 == NULL) return "gemm: no BLAS is set";
  p->is_bfloat16 = left->dtype == XLA_FFI_DataType_BF16;
  if (!flag(&frame->attrs, "left_is_transposed", &p->left_is_transposed) ||
      !flag(&frame->attrs, "right_is_transposed", &p->right_is_transposed))
    return "gemm: `left_is_transposed` and `right_is_transposed` must be booleans";
  p->m = left->dims[p->left_is_transposed], p->k = left->dims[!p->left_is_transposed];
  p->n = right->dims[!p->right_is_transposed];
  if (right->dims[p->right_is_transposed] != p->k || result->dims[0] != p->m ||
      result->dims[1] != p->n)
    return "gemm: the shapes of factors and result do not fit";
  p->left = left->data, p->right = right->data, p->result = result->data;
  p->left_stride = left->dims[1], p->right_stride = right->dims[1];
  return NULL;
}

XLA_FFI_Error *jaxpipe_gemm(XLA_FFI_CallFrame *frame) {
  if (is_asked_for_version(frame)) return NULL;
  product p;
  const char *message = read_product(frame, &p);
  if (message != NULL) return error(frame->api, message);
  if (p.m == 0 || p.n == 0) return NULL;
  if (p.k == 0) { /* the strides of a BLAS are at least 1 */
    memset(p.result, 0, sizeof(float) * p.m * p.n);
    return NULL;
  }
  int64_t size = p.m >= p.n ? p.m : p.n;
  return in_parts(frame, compute_slice, &p, sizeof p, size, size / LEAST_WIDTH);
}
