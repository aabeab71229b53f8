/* Products with integers of 64 bits, as they are defined: what tests have without a BLAS. */

#include <stdint.h>
#include <string.h>

enum { TRANSPOSED = 112 };

static double of_float32(const void *matrix, int64_t at) { return ((const float *)matrix)[at]; }

static double of_bfloat16(const void *matrix, int64_t at) {
  uint32_t bits = (uint32_t)((const uint16_t *)matrix)[at] << 16; /* the first half of a float */
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void multiply(double (*of)(const void *, int64_t), int of_left, int of_right, int64_t m,
                     int64_t n, int64_t k, float alpha, const void *left, int64_t left_stride,
                     const void *right, int64_t right_stride, float beta, float *result,
                     int64_t stride) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      double sum = 0;
      for (int64_t l = 0; l < k; l++)
        sum += of(left, of_left == TRANSPOSED ? l * left_stride + i : i * left_stride + l) *
               of(right, of_right == TRANSPOSED ? j * right_stride + l : l * right_stride + j);
      float *value = result + i * stride + j;
      *value = alpha * (float)sum + (beta == 0 ? 0 : beta * *value); /* NaN of before does not count */
    }
}

/* As `cblas_sgemm`; matrices are row-major, whatever the order. */
void plain_sgemm(int order, int of_left, int of_right, int64_t m, int64_t n, int64_t k, float alpha,
                 const float *left, int64_t left_stride, const float *right, int64_t right_stride,
                 float beta, float *result, int64_t stride) {
  (void)order;
  multiply(of_float32, of_left, of_right, m, n, k, alpha, left, left_stride, right, right_stride,
           beta, result, stride);
}

/* As `cblas_gemm_bf16bf16f32`. */
void plain_bgemm(int order, int of_left, int of_right, int64_t m, int64_t n, int64_t k, float alpha,
                 const uint16_t *left, int64_t left_stride, const uint16_t *right,
                 int64_t right_stride, float beta, float *result, int64_t stride) {
  (void)order;
  multiply(of_bfloat16, of_left, of_right, m, n, k, alpha, left, left_stride, right, right_stride,
           beta, result, stride);
}
