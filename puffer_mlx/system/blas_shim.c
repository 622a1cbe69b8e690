/* Forwards the three BLAS functions that MLX calls to the OpenBLAS that system/blas.py chooses.
 *
 * This library is loaded globally before MLX, so its definitions win over the reference BLAS that
 * MLX's wheel links. OpenBLAS itself isn't loaded globally, so LAPACK and the Fortran runtime stay
 * MLX's. BLAS_INT is OpenBLAS's integer type (64 bits in NumPy's). MLX passes int, so each function
 * only widens its integers. system/blas.py sets the pointers puffer_mlx_sgemm, ... before their use. */
#include <stdint.h>

#define FORWARD(GEMM, SCALAR)                                                                      \
    void (*puffer_mlx_##GEMM)(int, int, int, BLAS_INT, BLAS_INT, BLAS_INT, SCALAR, const void *,   \
                              BLAS_INT, const void *, BLAS_INT, SCALAR, void *, BLAS_INT);         \
    void cblas_##GEMM(int order, int trans_a, int trans_b, int m, int n, int k, SCALAR alpha,      \
                      const void *a, int lda, const void *b, int ldb, SCALAR beta, void *c,        \
                      int ldc) {                                                                   \
        puffer_mlx_##GEMM(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);  \
    }

FORWARD(sgemm, float)
FORWARD(dgemm, double)
FORWARD(cgemm, const void *)
