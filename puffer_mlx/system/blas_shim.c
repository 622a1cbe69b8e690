/* The three BLAS calls MLX makes, forwarded to the OpenBLAS that system/blas.py points them at.
 *
 * Loaded globally before MLX, these definitions win over those of the reference BLAS that MLX's
 * wheel links. Nothing of OpenBLAS itself becomes global, so LAPACK and Fortran's runtime stay
 * MLX's own. BLAS_INT is OpenBLAS's integer (NumPy's takes 64 bits); MLX passes int. */
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
