// A stand-in for rlgl.h of raylib 5.5, OpenGL as raylib calls it: nothing is drawn, see raylib.h.

#ifndef RLGL_H
#define RLGL_H

#pragma GCC system_header

#include "raylib_types.h"
#include "rlgl_constants.h"

typedef struct rlVertexBuffer {
    int elementCount;
    float *vertices, *texcoords, *normals;
    unsigned char* colors;
    unsigned int* indices;
    unsigned int vaoId, vboId[5];
} rlVertexBuffer;

typedef struct rlDrawCall {
    int mode, vertexCount, vertexAlignment;
    unsigned int textureId;
} rlDrawCall;

typedef struct rlRenderBatch {
    int bufferCount, currentBuffer;
    rlVertexBuffer* vertexBuffer;
    rlDrawCall* draws;
    int drawCounter;
    float currentDepth;
} rlRenderBatch;

// Functions that do nothing, that return zeros, and that return no text.
#define PUFFER_VOID(name, ...) \
    static inline void name(__VA_ARGS__) {}
#define PUFFER_ZERO(type, name, ...)        \
    static inline type name(__VA_ARGS__) {  \
        return (type){0};                   \
    }
#define PUFFER_TEXT(name, ...)                     \
    static inline const char* name(__VA_ARGS__) {  \
        return "";                                 \
    }

PUFFER_VOID(rlMatrixMode, int mode)
PUFFER_VOID(rlPushMatrix, void)
PUFFER_VOID(rlPopMatrix, void)
PUFFER_VOID(rlLoadIdentity, void)
PUFFER_VOID(rlTranslatef, float x, float y, float z)
PUFFER_VOID(rlRotatef, float angle, float x, float y, float z)
PUFFER_VOID(rlScalef, float x, float y, float z)
PUFFER_VOID(rlMultMatrixf, const float* matf)
PUFFER_VOID(rlFrustum, double left, double right, double bottom, double top, double znear,
            double zfar)
PUFFER_VOID(rlOrtho, double left, double right, double bottom, double top, double znear,
            double zfar)
PUFFER_VOID(rlViewport, int x, int y, int width, int height)
PUFFER_VOID(rlSetClipPlanes, double nearPlane, double farPlane)
PUFFER_ZERO(double, rlGetCullDistanceNear, void)
PUFFER_ZERO(double, rlGetCullDistanceFar, void)
PUFFER_VOID(rlBegin, int mode)
PUFFER_VOID(rlEnd, void)
PUFFER_VOID(rlVertex2i, int x, int y)
PUFFER_VOID(rlVertex2f, float x, float y)
PUFFER_VOID(rlVertex3f, float x, float y, float z)
PUFFER_VOID(rlTexCoord2f, float x, float y)
PUFFER_VOID(rlNormal3f, float x, float y, float z)
PUFFER_VOID(rlColor4ub, unsigned char r, unsigned char g, unsigned char b, unsigned char a)
PUFFER_VOID(rlColor3f, float x, float y, float z)
PUFFER_VOID(rlColor4f, float x, float y, float z, float w)
PUFFER_ZERO(bool, rlEnableVertexArray, unsigned int vaoId)
PUFFER_VOID(rlDisableVertexArray, void)
PUFFER_VOID(rlEnableVertexBuffer, unsigned int id)
PUFFER_VOID(rlDisableVertexBuffer, void)
PUFFER_VOID(rlEnableVertexBufferElement, unsigned int id)
PUFFER_VOID(rlDisableVertexBufferElement, void)
PUFFER_VOID(rlEnableVertexAttribute, unsigned int index)
PUFFER_VOID(rlDisableVertexAttribute, unsigned int index)
PUFFER_VOID(rlActiveTextureSlot, int slot)
PUFFER_VOID(rlEnableTexture, unsigned int id)
PUFFER_VOID(rlDisableTexture, void)
PUFFER_VOID(rlEnableTextureCubemap, unsigned int id)
PUFFER_VOID(rlDisableTextureCubemap, void)
PUFFER_VOID(rlTextureParameters, unsigned int id, int param, int value)
PUFFER_VOID(rlCubemapParameters, unsigned int id, int param, int value)
PUFFER_VOID(rlEnableShader, unsigned int id)
PUFFER_VOID(rlDisableShader, void)
PUFFER_VOID(rlEnableFramebuffer, unsigned int id)
PUFFER_VOID(rlDisableFramebuffer, void)
PUFFER_ZERO(unsigned int, rlGetActiveFramebuffer, void)
PUFFER_VOID(rlActiveDrawBuffers, int count)
PUFFER_VOID(rlBlitFramebuffer, int srcX, int srcY, int srcWidth, int srcHeight, int dstX, int dstY,
            int dstWidth, int dstHeight, int bufferMask)
PUFFER_VOID(rlBindFramebuffer, unsigned int target, unsigned int framebuffer)
PUFFER_VOID(rlEnableColorBlend, void)
PUFFER_VOID(rlDisableColorBlend, void)
PUFFER_VOID(rlEnableDepthTest, void)
PUFFER_VOID(rlDisableDepthTest, void)
PUFFER_VOID(rlEnableDepthMask, void)
PUFFER_VOID(rlDisableDepthMask, void)
PUFFER_VOID(rlEnableBackfaceCulling, void)
PUFFER_VOID(rlDisableBackfaceCulling, void)
PUFFER_VOID(rlColorMask, bool r, bool g, bool b, bool a)
PUFFER_VOID(rlSetCullFace, int mode)
PUFFER_VOID(rlEnableScissorTest, void)
PUFFER_VOID(rlDisableScissorTest, void)
PUFFER_VOID(rlScissor, int x, int y, int width, int height)
PUFFER_VOID(rlEnableWireMode, void)
PUFFER_VOID(rlEnablePointMode, void)
PUFFER_VOID(rlDisableWireMode, void)
PUFFER_VOID(rlSetLineWidth, float width)
PUFFER_ZERO(float, rlGetLineWidth, void)
PUFFER_VOID(rlEnableSmoothLines, void)
PUFFER_VOID(rlDisableSmoothLines, void)
PUFFER_VOID(rlEnableStereoRender, void)
PUFFER_VOID(rlDisableStereoRender, void)
PUFFER_ZERO(bool, rlIsStereoRenderEnabled, void)
PUFFER_VOID(rlClearColor, unsigned char r, unsigned char g, unsigned char b, unsigned char a)
PUFFER_VOID(rlClearScreenBuffers, void)
PUFFER_VOID(rlCheckErrors, void)
PUFFER_VOID(rlSetBlendMode, int mode)
PUFFER_VOID(rlSetBlendFactors, int glSrcFactor, int glDstFactor, int glEquation)
PUFFER_VOID(rlSetBlendFactorsSeparate, int glSrcRGB, int glDstRGB, int glSrcAlpha, int glDstAlpha,
            int glEqRGB, int glEqAlpha)
PUFFER_VOID(rlglInit, int width, int height)
PUFFER_VOID(rlglClose, void)
PUFFER_VOID(rlLoadExtensions, void* loader)
PUFFER_ZERO(int, rlGetVersion, void)
PUFFER_VOID(rlSetFramebufferWidth, int width)
PUFFER_ZERO(int, rlGetFramebufferWidth, void)
PUFFER_VOID(rlSetFramebufferHeight, int height)
PUFFER_ZERO(int, rlGetFramebufferHeight, void)
PUFFER_ZERO(unsigned int, rlGetTextureIdDefault, void)
PUFFER_ZERO(unsigned int, rlGetShaderIdDefault, void)
PUFFER_ZERO(int*, rlGetShaderLocsDefault, void)
PUFFER_ZERO(rlRenderBatch, rlLoadRenderBatch, int numBuffers, int bufferElements)
PUFFER_VOID(rlUnloadRenderBatch, rlRenderBatch batch)
PUFFER_VOID(rlDrawRenderBatch, rlRenderBatch* batch)
PUFFER_VOID(rlSetRenderBatchActive, rlRenderBatch* batch)
PUFFER_VOID(rlDrawRenderBatchActive, void)
PUFFER_ZERO(bool, rlCheckRenderBatchLimit, int vCount)
PUFFER_VOID(rlSetTexture, unsigned int id)
PUFFER_ZERO(unsigned int, rlLoadVertexArray, void)
PUFFER_ZERO(unsigned int, rlLoadVertexBuffer, const void* buffer, int size, bool dynamic)
PUFFER_ZERO(unsigned int, rlLoadVertexBufferElement, const void* buffer, int size, bool dynamic)
PUFFER_VOID(rlUpdateVertexBuffer, unsigned int bufferId, const void* data, int dataSize, int offset)
PUFFER_VOID(rlUpdateVertexBufferElements, unsigned int id, const void* data, int dataSize,
            int offset)
PUFFER_VOID(rlUnloadVertexArray, unsigned int vaoId)
PUFFER_VOID(rlUnloadVertexBuffer, unsigned int vboId)
PUFFER_VOID(rlSetVertexAttribute, unsigned int index, int compSize, int type, bool normalized,
            int stride, int offset)
PUFFER_VOID(rlSetVertexAttributeDivisor, unsigned int index, int divisor)
PUFFER_VOID(rlSetVertexAttributeDefault, int locIndex, const void* value, int attribType, int count)
PUFFER_VOID(rlDrawVertexArray, int offset, int count)
PUFFER_VOID(rlDrawVertexArrayElements, int offset, int count, const void* buffer)
PUFFER_VOID(rlDrawVertexArrayInstanced, int offset, int count, int instances)
PUFFER_VOID(rlDrawVertexArrayElementsInstanced, int offset, int count, const void* buffer,
            int instances)
PUFFER_ZERO(unsigned int, rlLoadTexture, const void* data, int width, int height, int format,
            int mipmapCount)
PUFFER_ZERO(unsigned int, rlLoadTextureDepth, int width, int height, bool useRenderBuffer)
PUFFER_ZERO(unsigned int, rlLoadTextureCubemap, const void* data, int size, int format,
            int mipmapCount)
PUFFER_VOID(rlUpdateTexture, unsigned int id, int offsetX, int offsetY, int width, int height,
            int format, const void* data)
PUFFER_VOID(rlGetGlTextureFormats, int format, unsigned int* glInternalFormat,
            unsigned int* glFormat, unsigned int* glType)
PUFFER_TEXT(rlGetPixelFormatName, unsigned int format)
PUFFER_VOID(rlUnloadTexture, unsigned int id)
PUFFER_VOID(rlGenTextureMipmaps, unsigned int id, int width, int height, int format, int* mipmaps)
PUFFER_ZERO(void*, rlReadTexturePixels, unsigned int id, int width, int height, int format)
PUFFER_ZERO(unsigned char*, rlReadScreenPixels, int width, int height)
PUFFER_ZERO(unsigned int, rlLoadFramebuffer, void)
PUFFER_VOID(rlFramebufferAttach, unsigned int fboId, unsigned int texId, int attachType,
            int texType, int mipLevel)
PUFFER_ZERO(bool, rlFramebufferComplete, unsigned int id)
PUFFER_VOID(rlUnloadFramebuffer, unsigned int id)
PUFFER_ZERO(unsigned int, rlLoadShaderCode, const char* vsCode, const char* fsCode)
PUFFER_ZERO(unsigned int, rlCompileShader, const char* shaderCode, int type)
PUFFER_ZERO(unsigned int, rlLoadShaderProgram, unsigned int vShaderId, unsigned int fShaderId)
PUFFER_VOID(rlUnloadShaderProgram, unsigned int id)
PUFFER_ZERO(int, rlGetLocationUniform, unsigned int shaderId, const char* uniformName)
PUFFER_ZERO(int, rlGetLocationAttrib, unsigned int shaderId, const char* attribName)
PUFFER_VOID(rlSetUniform, int locIndex, const void* value, int uniformType, int count)
PUFFER_VOID(rlSetUniformMatrix, int locIndex, Matrix mat)
PUFFER_VOID(rlSetUniformMatrices, int locIndex, const Matrix* mat, int count)
PUFFER_VOID(rlSetUniformSampler, int locIndex, unsigned int textureId)
PUFFER_VOID(rlSetShader, unsigned int id, int* locs)
PUFFER_ZERO(unsigned int, rlLoadComputeShaderProgram, unsigned int shaderId)
PUFFER_VOID(rlComputeShaderDispatch, unsigned int groupX, unsigned int groupY, unsigned int groupZ)
PUFFER_ZERO(unsigned int, rlLoadShaderBuffer, unsigned int size, const void* data, int usageHint)
PUFFER_VOID(rlUnloadShaderBuffer, unsigned int ssboId)
PUFFER_VOID(rlUpdateShaderBuffer, unsigned int id, const void* data, unsigned int dataSize,
            unsigned int offset)
PUFFER_VOID(rlBindShaderBuffer, unsigned int id, unsigned int index)
PUFFER_VOID(rlReadShaderBuffer, unsigned int id, void* dest, unsigned int count,
            unsigned int offset)
PUFFER_VOID(rlCopyShaderBuffer, unsigned int destId, unsigned int srcId, unsigned int destOffset,
            unsigned int srcOffset, unsigned int count)
PUFFER_ZERO(unsigned int, rlGetShaderBufferSize, unsigned int id)
PUFFER_VOID(rlBindImageTexture, unsigned int id, unsigned int index, int format, bool readonly)
PUFFER_ZERO(Matrix, rlGetMatrixModelview, void)
PUFFER_ZERO(Matrix, rlGetMatrixProjection, void)
PUFFER_ZERO(Matrix, rlGetMatrixTransform, void)
PUFFER_ZERO(Matrix, rlGetMatrixProjectionStereo, int eye)
PUFFER_ZERO(Matrix, rlGetMatrixViewOffsetStereo, int eye)
PUFFER_VOID(rlSetMatrixProjection, Matrix proj)
PUFFER_VOID(rlSetMatrixModelview, Matrix view)
PUFFER_VOID(rlSetMatrixProjectionStereo, Matrix right, Matrix left)
PUFFER_VOID(rlSetMatrixViewOffsetStereo, Matrix right, Matrix left)
PUFFER_VOID(rlLoadDrawCube, void)
PUFFER_VOID(rlLoadDrawQuad, void)

#undef PUFFER_VOID
#undef PUFFER_ZERO
#undef PUFFER_TEXT

#endif
