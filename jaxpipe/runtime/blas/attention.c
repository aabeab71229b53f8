/* Attention of float32 heads with the products of a BLAS, as two custom calls of XLA on the CPU.
 *
 *     output = softmax(scale q k^T) v          a query reads its own token and earlier ones if
 *     statistic = log(sum(exp(scale q k^T)))   `causal`, else all
 *
 * Queries come in blocks, whose scores stay in the cache of a core. Heads are read and written
 * where they lie, with the stride of a token: nothing is transposed or put side by side. Several
 * heads may share a key and a value. The backward computes scores again, from the statistic.
 *
 * Source: Dao et al. 2022, "FlashAttention", section 3.1 and appendix B. */

#include <math.h>

#include "call_of_xla.h"

static sgemm *cblas_sgemm;

/* Set the `cblas_sgemm` of a BLAS whose integers have 64 bits; before any call. */
void jaxpipe_attention_use(sgemm *function) { cblas_sgemm = function; }

/* Measured for heads of 64: shorter blocks compute less of what causality forbids, longer ones have
 * faster products. */
enum { SHORT_SEQUENCE = 256, SHORT_BLOCK = 32, BLOCK = 128 };

enum { LANES = 16 }; /* of a vector: two of them on processors with AVX2 */
typedef float vector __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4)));

static inline vector all(float x) { return x - (vector){0}; }
static inline vector *at(float *p) { return (vector *)p; }

/* The larger values; NaN of x stays. */
static inline vector larger(vector x, vector y) {
  integers is_y = y > x;
  return (vector)(((integers)y & is_y) | ((integers)x & ~is_y));
}

/* exp(x) of x from 0 down; below -87, where it leaves the range of float32, exp(-87). The result is
 * 2^n exp(f) with a polynomial on [-ln 2 / 2, ln 2 / 2]: Moshier, "Cephes", expf. */
static inline vector exponential(vector x) {
  x = larger(x, all(-87.0f));
  const float rounding = 12582912.0f; /* 1.5 x 2^23: a sum with it has no fraction */
  vector n = (x * 1.44269504088896341f + rounding) - rounding;
  vector f = (x - n * 0.693359375f) - n * -2.12194440e-4f; /* ln 2 in two parts */
  vector p = all(1.9875691500e-4f);
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  return p * (vector)((__builtin_convertvector(n, integers) + 127) << 23);
}

static inline float sum(vector v) {
  float total = 0;
  for (int lane = 0; lane < LANES; lane++) total += v[lane];
  return total;
}

static inline float largest(vector v) {
  float most = v[0];
  for (int lane = 1; lane < LANES; lane++) most = v[lane] > most ? v[lane] : most;
  return most;
}

typedef struct {
  const float *q, *k, *v, *output, *statistic, *of_output; /* the last three of the backward */
  float *results[3];    /* output and statistic, or gradients of q, k and v */
  int64_t batch, length, heads, kv_heads, width;
  int64_t q_stride, kv_stride; /* from token to token; of outputs it is heads x width */
  float scale;
  bool causal;
} attention;

static int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }
static int64_t block_of(const attention *a) {
  return a->length <= SHORT_SEQUENCE ? SHORT_BLOCK : BLOCK;
}

/* Replace scores by the exponentials of scores less `shift`; those from `valid` on are 0. */
static vector weights_of(float *scores, int64_t valid, int64_t end, float shift) {
  vector total = all(0);
  for (int64_t i = valid; i < end; i++) scores[i] = -INFINITY;
  for (int64_t i = 0; i < end; i += LANES)
    total += *at(scores + i) = exponential(*at(scores + i) - shift);
  for (int64_t i = valid; i < end; i++) scores[i] = 0;
  return total;
}

/* Replace the scores of a query by their exponentials; return the statistic, and 1 over their sum. */
static float softmax(float *scores, int64_t valid, int64_t end, float *factor) {
  vector peaks = all(-INFINITY);
  for (int64_t i = valid; i < end; i++) scores[i] = -INFINITY;
  for (int64_t i = 0; i < end; i += LANES) peaks = larger(*at(scores + i), peaks);
  float peak = largest(peaks), total = sum(weights_of(scores, valid, end, peak));
  *factor = 1 / total;
  return peak + logf(total);
}

static void forward_head(const attention *a, int64_t sample, int64_t head, float *scores) {
  int64_t width = a->width, length = a->length, stride = a->heads * width, most = block_of(a);
  int64_t kv_head = head / (a->heads / a->kv_heads), row_stride = padded(length);
  const float *q = a->q + sample * length * a->q_stride + head * width;
  const float *k = a->k + sample * length * a->kv_stride + kv_head * width;
  const float *v = a->v + sample * length * a->kv_stride + kv_head * width;
  float *output = a->results[0] + sample * length * stride + head * width;
  float *statistic = a->results[1] + (sample * a->heads + head) * length, factors[BLOCK];
  for (int64_t first = 0; first < length; first += most) {
    int64_t rows = first + most < length ? most : length - first;
    int64_t keys = a->causal ? first + rows : length;
    cblas_sgemm(ROW_MAJOR, AS_IS, TRANSPOSED, rows, keys, width, a->scale, q + first * a->q_stride,
                a->q_stride, k, a->kv_stride, 0, scores, row_stride);
    for (int64_t row = 0; row < rows; row++) {
      int64_t valid = a->causal ? first + row + 1 : keys;
      statistic[first + row] =
          softmax(scores + row * row_stride, valid, padded(keys), factors + row);
    }
    cblas_sgemm(ROW_MAJOR, AS_IS, AS_IS, rows, width, keys, 1, scores, row_stride, v, a->kv_stride,
                0, output + first * stride, stride);
    for (int64_t row = 0; row < rows; row++)
      for (int64_t i = 0; i < width; i++) output[(first + row) * stride + i] *= factors[row];
  }
}

static float dot(const float *x, const float *y, int64_t size) {
  float lanes[LANES] = {0}, total = 0;
  int64_t whole = size / LANES * LANES;
  for (int64_t i = 0; i < whole; i += LANES)
    for (int lane = 0; lane < LANES; lane++) lanes[lane] += x[i + lane] * y[i + lane];
  for (int lane = 0; lane < LANES; lane++) total += lanes[lane];
  for (int64_t i = whole; i < size; i++) total += x[i] * y[i];
  return total;
}

/* The gradients of a head; those of its key and value are accumulated unless it `is_first`. */
static void backward_head(const attention *a, int64_t sample, int64_t head, bool is_first,
                          float *weights, float *of_scores) {
  int64_t width = a->width, length = a->length, stride = a->heads * width, most = block_of(a);
  int64_t kv_head = head / (a->heads / a->kv_heads), row_stride = padded(length);
  int64_t q_at = sample * length * a->q_stride + head * width;
  int64_t kv_at = sample * length * a->kv_stride + kv_head * width;
  int64_t output_at = sample * length * stride + head * width;
  const float *q = a->q + q_at, *k = a->k + kv_at, *v = a->v + kv_at;
  const float *output = a->output + output_at, *of_output = a->of_output + output_at;
  const float *statistic = a->statistic + (sample * a->heads + head) * length;
  float *of_q = a->results[0] + q_at, *of_k = a->results[1] + kv_at, *of_v = a->results[2] + kv_at;
  float beta = is_first ? 0 : 1;
  /* From the last block on: of causal ones it alone reads all keys, and writes all gradients. */
  for (int64_t first = (length - 1) / most * most; first >= 0; first -= most) {
    int64_t rows = first + most < length ? most : length - first;
    int64_t keys = a->causal ? first + rows : length, end = padded(keys);
    const float *q_rows = q + first * a->q_stride, *of_rows = of_output + first * stride;
    cblas_sgemm(ROW_MAJOR, AS_IS, TRANSPOSED, rows, keys, width, a->scale, q_rows, a->q_stride, k,
                a->kv_stride, 0, weights, row_stride);
    cblas_sgemm(ROW_MAJOR, AS_IS, TRANSPOSED, rows, keys, width, 1, of_rows, stride, v,
                a->kv_stride, 0, of_scores, row_stride);
    for (int64_t row = 0; row < rows; row++) {
      float *p = weights + row * row_stride, *of_p = of_scores + row * row_stride;
      int64_t valid = a->causal ? first + row + 1 : keys;
      float product = dot(output + (first + row) * stride, of_rows + row * stride, width);
      weights_of(p, valid, end, statistic[first + row]);
      for (int64_t i = valid; i < end; i++) of_p[i] = 0;
      for (int64_t i = 0; i < end; i += LANES)
        *at(of_p + i) = *at(p + i) * (*at(of_p + i) - product) * a->scale;
    }
    cblas_sgemm(ROW_MAJOR, TRANSPOSED, AS_IS, keys, width, rows, 1, weights, row_stride, of_rows,
                stride, beta, of_v, a->kv_stride);
    cblas_sgemm(ROW_MAJOR, TRANSPOSED, AS_IS, keys, width, rows, 1, of_scores, row_stride, q_rows,
                a->q_stride, beta, of_k, a->kv_stride);
    cblas_sgemm(ROW_MAJOR, AS_IS, AS_IS, rows, width, keys, 1, of_scores, row_stride, k,
                a->kv_stride, 0, of_q + first * a->q_stride, a->q_stride);
    beta = 1;
  }
}

/* The heads of keys from `begin` to `end`, of all samples: all heads that share one are of one. */
static bool compute_heads(const void *work, int64_t begin, int64_t end, bool backward) {
  const attention *a = work;
  int64_t group = a->heads / a->kv_heads, size = block_of(a) * padded(a->length);
  float *scores = aligned_alloc(64, sizeof(float) * size * (backward ? 2 : 1));
  if (scores == NULL) return false;
  for (int64_t i = begin; i < end; i++)
    for (int64_t member = 0; member < group; member++) {
      int64_t sample = i / a->kv_heads, head = i % a->kv_heads * group + member;
      if (backward)
        backward_head(a, sample, head, member == 0, scores, scores + size);
      else
        forward_head(a, sample, head, scores);
    }
  free(scores);
  return true;
}

static bool forward_heads(const void *work, int64_t begin, int64_t end) {
  return compute_heads(work, begin, end, false);
}

static bool backward_heads(const void *work, int64_t begin, int64_t end) {
  return compute_heads(work, begin, end, true);
}

static bool is_like(const XLA_FFI_Buffer *buffer, const XLA_FFI_Buffer *other) {
  return is_array(buffer, other->rank) &&
         memcmp(buffer->dims, other->dims, sizeof(int64_t) * other->rank) == 0;
}

/* Queries, keys and values are one array (batch, tokens, 3, heads, width), or three (batch, tokens,
 * heads, width); `num_more` arrays follow in the backward. */
static const char *read_attention(const XLA_FFI_CallFrame *frame, attention *a, int64_t num_more) {
  if (cblas_sgemm == NULL) return "attention: no BLAS is set";
  int64_t num_parts = frame->args.size - num_more;
  XLA_FFI_Buffer *const *args = (XLA_FFI_Buffer *const *)frame->args.args;
  if (num_parts != 1 && num_parts != 3) return "attention: not one array or three";
  bool is_one = num_parts == 1;
  if (!is_array(args[0], is_one ? 5 : 4)) return "attention: queries must be float32, by heads";
  const int64_t *dims = args[0]->dims, *last = dims + args[0]->rank - 2;
  a->batch = dims[0], a->length = dims[1], a->heads = last[0], a->width = last[1];
  a->kv_heads = a->heads, a->q_stride = a->heads * a->width;
  if (is_one) {
    if (dims[2] != 3) return "attention: not queries, keys and values";
    a->q = args[0]->data, a->k = a->q + a->q_stride, a->v = a->k + a->q_stride;
    a->q_stride = a->kv_stride = 3 * a->q_stride;
  } else {
    if (!is_array(args[1], 4) || !is_like(args[2], args[1])) return "attention: keys and values differ";
    a->kv_heads = args[1]->dims[2], a->kv_stride = a->kv_heads * a->width;
    if (args[1]->dims[0] != a->batch || args[1]->dims[1] != a->length || args[1]->dims[3] != a->width)
      return "attention: queries and keys differ";
    a->q = args[0]->data, a->k = args[1]->data, a->v = args[2]->data;
  }
  if (a->kv_heads < 1 || a->heads % a->kv_heads != 0)
    return "attention: heads of keys must divide those of queries";
  const float *scale = attribute(&frame->attrs, "scale", XLA_FFI_DataType_F32);
  const bool *causal = attribute(&frame->attrs, "causal", XLA_FFI_DataType_PRED);
  if (scale == NULL || causal == NULL) return "attention: `scale` and `causal` are missing";
  a->scale = *scale, a->causal = *causal;
  return NULL;
}

static int64_t count(const XLA_FFI_Buffer *buffer) {
  int64_t values = buffer->dtype == XLA_FFI_DataType_F32 ? 1 : -1;
  for (int64_t i = 0; i < buffer->rank; i++) values *= buffer->dims[i];
  return values;
}

static XLA_FFI_Error *compute(XLA_FFI_CallFrame *frame, const attention *a, compute_range *range) {
  int64_t num_heads = a->batch * a->kv_heads;
  if (num_heads == 0 || a->length == 0 || a->width == 0) return NULL;
  return in_parts(frame, range, a, sizeof *a, num_heads, num_heads);
}

XLA_FFI_Error *jaxpipe_attention(XLA_FFI_CallFrame *frame) {
  if (is_asked_for_version(frame)) return NULL;
  attention a = {0};
  const char *message = read_attention(frame, &a, 0);
  if (message != NULL) return error(frame->api, message);
  XLA_FFI_Buffer *const *results = (XLA_FFI_Buffer *const *)frame->rets.rets;
  int64_t values = a.batch * a.length * a.heads;
  if (frame->rets.size != 2 || count(results[0]) != values * a.width || count(results[1]) != values)
    return error(frame->api, "attention: the results have other shapes");
  a.results[0] = results[0]->data, a.results[1] = results[1]->data;
  return compute(frame, &a, forward_heads);
}

XLA_FFI_Error *jaxpipe_attention_backward(XLA_FFI_CallFrame *frame) {
  if (is_asked_for_version(frame)) return NULL;
  attention a = {0};
  const char *message = read_attention(frame, &a, 3);
  if (message != NULL) return error(frame->api, message);
  int64_t num_parts = frame->args.size - 3, values = a.batch * a.length * a.heads;
  XLA_FFI_Buffer *const *args = (XLA_FFI_Buffer *const *)frame->args.args;
  XLA_FFI_Buffer *const *results = (XLA_FFI_Buffer *const *)frame->rets.rets;
  const XLA_FFI_Buffer *const more[] = {args[num_parts], args[num_parts + 1], args[num_parts + 2]};
  if (frame->rets.size != num_parts || count(more[0]) != values * a.width ||
      count(more[1]) != values || count(more[2]) != values * a.width)
    return error(frame->api, "attention: output, statistic or gradients have other shapes");
  for (int64_t i = 0; i < num_parts; i++)
    if (!is_like(results[i], args[i]))
      return error(frame->api, "attention: a gradient has another shape than its argument");
  a.output = more[0]->data, a.statistic = more[1]->data, a.of_output = more[2]->data;
  if (num_parts == 1) {
    int64_t part = a.heads * a.width;
    float *of_qkv = results[0]->data;
    a.results[0] = of_qkv, a.results[1] = of_qkv + part, a.results[2] = of_qkv + 2 * part;
  } else {
    for (int i = 0; i < 3; i++) a.results[i] = results[i]->data;
  }
  return compute(frame, &a, backward_heads);
}
