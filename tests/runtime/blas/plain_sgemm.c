/* `cblas_sgemm` with integers of 64 bits, as it is defined: what tests have without a BLAS. */

#include <stdint.h>

enum { TRANSPOSED = 112 };

void plain_sgemm(int order, int of_left, int of_right, int64_t m, int64_t n, int64_t k, float alpha,
                 const float *left, int64_t left_stride, const float *right, int64_t right_stride,
                 float beta, float *result, int64_t stride) {
  (void)order; /* row-major */
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      double sum = 0;
      for (int64_t l = 0; l < k; l++)
        sum += (double)(of_left == TRANSPOSED ? left[l * left_stride + i] : left[i * left_stride + l]) *
               (of_right == TRANSPOSED ? right[j * right_stride + l] : right[l * right_stride + j]);
      float *value = result + i * stride + j;
      *value = alpha * (float)sum + (beta == 0 ? 0 : beta * *value); /* NaN of before does not count */
    }
}
