/* A product of float32 matrices by a BLAS, as a custom call of XLA on the CPU.
 *
 *     result (m, n) = op(left) (m, k) op(right) (k, n)      op transposes where the attribute says
 *
 * All matrices are row-major. Rows or columns of the result, whichever are more, are divided among
 * the threads of XLA; the BLAS computes with one thread. */

#include "call_of_xla.h"

enum { LEAST_WIDTH = 64 };

static sgemm *cblas_sgemm;

/* Set the `cblas_sgemm` of a BLAS whose integers have 64 bits; before any product. */
void jaxpipe_sgemm_use(sgemm *function) { cblas_sgemm = function; }

typedef struct {
  const float *left, *right;
  float *result;
  int64_t m, n, k, left_stride, right_stride;
  bool left_is_transposed, right_is_transposed;
} product;

static void compute(const product *p, int64_t row, int64_t num_rows, int64_t column,
                    int64_t num_columns) {
  const float *left = p->left + row * (p->left_is_transposed ? 1 : p->left_stride);
  const float *right = p->right + column * (p->right_is_transposed ? p->right_stride : 1);
  float *result = p->result + row * p->n + column;
  cblas_sgemm(ROW_MAJOR, p->left_is_transposed ? TRANSPOSED : AS_IS,
              p->right_is_transposed ? TRANSPOSED : AS_IS, num_rows, num_columns, p->k, 1.0f, left,
              p->left_stride, right, p->right_stride, 0.0f, result, p->n);
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

static const char *read_product(const XLA_FFI_CallFrame *frame, product *p) {
  if (cblas_sgemm == NULL) return "sgemm: no BLAS is set";
  if (frame->args.size != 2 || frame->rets.size != 1)
    return "sgemm: not two factors and one result";
  const XLA_FFI_Buffer *left = frame->args.args[0], *right = frame->args.args[1];
  const XLA_FFI_Buffer *result = frame->rets.rets[0];
  if (!is_array(left, 2) || !is_array(right, 2) || !is_array(result, 2))
    return "sgemm: factors and result must be matrices of float32";
  if (!flag(&frame->attrs, "left_is_transposed", &p->left_is_transposed) ||
      !flag(&frame->attrs, "right_is_transposed", &p->right_is_transposed))
    return "sgemm: `left_is_transposed` and `right_is_transposed` must be booleans";
  p->m = left->dims[p->left_is_transposed], p->k = left->dims[!p->left_is_transposed];
  p->n = right->dims[!p->right_is_transposed];
  if (right->dims[p->right_is_transposed] != p->k || result->dims[0] != p->m ||
      result->dims[1] != p->n)
    return "sgemm: the shapes of factors and result do not fit";
  p->left = left->data, p->right = right->data, p->result = result->data;
  p->left_stride = left->dims[1], p->right_stride = right->dims[1];
  return NULL;
}

XLA_FFI_Error *jaxpipe_sgemm(XLA_FFI_CallFrame *frame) {
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
