/* A product of float32 matrices by a BLAS, as a custom call of XLA on the CPU.
 *
 *     result (m, n) = op(left) (m, k) op(right) (k, n)      op transposes where the attribute says
 *
 * All matrices are row-major. Rows or columns of the result, whichever are more, are divided among
 * the threads of XLA; the BLAS computes with one thread. No Python runs here: it would wait for its
 * lock. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 }; /* of CBLAS */
enum { LEAST_WIDTH = 64, MOST_PARTS = 64 };

typedef void sgemm(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t,
                   const float *, int64_t, float, float *, int64_t);

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

/* The parts of a product: whoever comes takes the next one. */
typedef struct {
  product whole;
  int num_parts;
  atomic_int next, references;
  int num_done;
  pthread_mutex_t lock;
  pthread_cond_t done;
} shared;

static void compute_parts(shared *s) {
  const product *p = &s->whole;
  bool by_rows = p->m >= p->n;
  int64_t size = by_rows ? p->m : p->n;
  for (int part; (part = atomic_fetch_add(&s->next, 1)) < s->num_parts;) {
    int64_t begin = size * part / s->num_parts, end = size * (part + 1) / s->num_parts;
    if (by_rows)
      compute(p, begin, end - begin, 0, p->n);
    else
      compute(p, 0, p->m, begin, end - begin);
    pthread_mutex_lock(&s->lock);
    if (++s->num_done == s->num_parts) pthread_cond_signal(&s->done);
    pthread_mutex_unlock(&s->lock);
  }
}

static void release(shared *s) {
  if (atomic_fetch_sub(&s->references, 1) > 1) return;
  pthread_mutex_destroy(&s->lock);
  pthread_cond_destroy(&s->done);
  free(s);
}

static void run_task(void *data) {
  compute_parts(data);
  release(data);
}

static XLA_FFI_Error *error(const XLA_FFI_Api *api, const char *message) {
  XLA_FFI_Error_Create_Args args = {.struct_size = sizeof args,
                                    .message = message,
                                    .errc = XLA_FFI_Error_Code_INVALID_ARGUMENT};
  return api->XLA_FFI_Error_Create(&args);
}

static int64_t num_threads(const XLA_FFI_CallFrame *frame) {
  int64_t threads = 1;
  XLA_FFI_ThreadPool_NumThreads_Args args = {
      .struct_size = sizeof args, .ctx = frame->ctx, .num_threads = &threads};
  XLA_FFI_Error *none = frame->api->XLA_FFI_ThreadPool_NumThreads(&args);
  if (none != NULL) { /* without a pool */
    XLA_FFI_Error_Destroy_Args destroyed = {.struct_size = sizeof destroyed, .error = none};
    frame->api->XLA_FFI_Error_Destroy(&destroyed);
    return 1;
  }
  return threads;
}

/* Compute with this thread and those of XLA. This one waits for parts that another has begun, never
 * for one to begin: all threads may be here. */
static XLA_FFI_Error *compute_together(const XLA_FFI_CallFrame *frame, const product *p,
                                       int num_parts) {
  shared *s = malloc(sizeof *s);
  if (s == NULL) {
    compute(p, 0, p->m, 0, p->n);
    return NULL;
  }
  s->whole = *p, s->num_parts = num_parts, s->num_done = 0;
  atomic_init(&s->next, 0);
  atomic_init(&s->references, num_parts);
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->done, NULL);
  XLA_FFI_Error *failed = NULL;
  for (int task = 1; task < num_parts; task++) {
    XLA_FFI_ThreadPool_Schedule_Args args = {
        .struct_size = sizeof args, .ctx = frame->ctx, .task = run_task, .data = s};
    if (failed == NULL) failed = frame->api->XLA_FFI_ThreadPool_Schedule(&args);
    if (failed != NULL) release(s);
  }
  compute_parts(s);
  pthread_mutex_lock(&s->lock);
  while (s->num_done < num_parts) pthread_cond_wait(&s->done, &s->lock);
  pthread_mutex_unlock(&s->lock);
  release(s);
  return failed;
}

static bool flag(const XLA_FFI_Attrs *attrs, const char *name, bool *value) {
  for (int64_t i = 0; i < attrs->size; i++) {
    const XLA_FFI_ByteSpan *given = attrs->names[i];
    if (given->len != strlen(name) || memcmp(given->ptr, name, given->len) != 0) continue;
    const XLA_FFI_Scalar *scalar = attrs->attrs[i];
    if (attrs->types[i] != XLA_FFI_AttrType_SCALAR) return false;
    if (scalar->dtype != XLA_FFI_DataType_PRED) return false;
    *value = *(const bool *)scalar->value;
    return true;
  }
  return false;
}

static bool is_matrix(const XLA_FFI_Buffer *buffer) {
  return buffer->dtype == XLA_FFI_DataType_F32 && buffer->rank == 2;
}

static const char *read_product(const XLA_FFI_CallFrame *frame, product *p) {
  if (cblas_sgemm == NULL) return "sgemm: no BLAS is set";
  if (frame->args.size != 2 || frame->rets.size != 1)
    return "sgemm: not two factors and one result";
  const XLA_FFI_Buffer *left = frame->args.args[0], *right = frame->args.args[1];
  const XLA_FFI_Buffer *result = frame->rets.rets[0];
  if (!is_matrix(left) || !is_matrix(right) || !is_matrix(result))
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

static bool is_asked_for_version(const XLA_FFI_CallFrame *frame) {
  XLA_FFI_Extension_Base *extension = frame->extension_start;
  if (extension == NULL || extension->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)extension)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  metadata->traits = 0;
  return true;
}

XLA_FFI_Error *jaxpipe_sgemm(XLA_FFI_CallFrame *frame) {
  if (is_asked_for_version(frame)) return NULL; /* when the call is registered */
  product p;
  const char *message = read_product(frame, &p);
  if (message != NULL) return error(frame->api, message);
  if (p.m == 0 || p.n == 0) return NULL;
  if (p.k == 0) { /* the strides of a BLAS are at least 1 */
    memset(p.result, 0, sizeof(float) * p.m * p.n);
    return NULL;
  }
  int64_t parts = num_threads(frame), most = (p.m > p.n ? p.m : p.n) / LEAST_WIDTH;
  if (parts > most) parts = most;
  if (parts > MOST_PARTS) parts = MOST_PARTS;
  if (parts > 1) return compute_together(frame, &p, (int)parts);
  compute(&p, 0, p.m, 0, p.n);
  return NULL;
}
