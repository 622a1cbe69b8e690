// raylib 5.5's structs: names, members and their order are its interface.

#ifndef PUFFER_RAYLIB_TYPES_H
#define PUFFER_RAYLIB_TYPES_H

#pragma GCC system_header

#include <stdbool.h>

// ---- Numbers ------------------------------------------------------------------------------------

#ifndef PI
#define PI 3.14159265358979323846f
#endif
#ifndef DEG2RAD
#define DEG2RAD (PI / 180.0f)
#endif
#ifndef RAD2DEG
#define RAD2DEG (180.0f / PI)
#endif

typedef struct Vector2 {
    float x, y;
} Vector2;

typedef struct Vector3 {
    float x, y, z;
} Vector3;

typedef struct Vector4 {
    float x, y, z, w;
} Vector4;

typedef Vector4 Quaternion;

// A row of the 4 x 4 matrix per line; the numbers count down its columns, as OpenGL does.
typedef struct Matrix {
    float m0, m4, m8, m12;
    float m1, m5, m9, m13;
    float m2, m6, m10, m14;
    float m3, m7, m11, m15;
} Matrix;

typedef struct Color {
    unsigned char r, g, b, a;
} Color;

typedef struct Rectangle {
    float x, y, width, height;
} Rectangle;

// The names other headers test before they define these types themselves.
#define RL_VECTOR2_TYPE
#define RL_VECTOR3_TYPE
#define RL_VECTOR4_TYPE
#define RL_QUATERNION_TYPE
#define RL_MATRIX_TYPE
#define RL_COLOR_TYPE
#define RL_RECTANGLE_TYPE

// ---- Pictures and text --------------------------------------------------------------------------

typedef struct Image {
    void* data;
    int width, height, mipmaps, format;
} Image;

typedef struct Texture {
    unsigned int id;
    int width, height, mipmaps, format;
} Texture;

typedef Texture Texture2D;
typedef Texture TextureCubemap;

typedef struct RenderTexture {
    unsigned int id;
    Texture texture, depth;
} RenderTexture;

typedef RenderTexture RenderTexture2D;

typedef struct NPatchInfo {
    Rectangle source;
    int left, top, right, bottom, layout;
} NPatchInfo;

typedef struct GlyphInfo {
    int value, offsetX, offsetY, advanceX;
    Image image;
} GlyphInfo;

typedef struct Font {
    int baseSize, glyphCount, glyphPadding;
    Texture2D texture;
    Rectangle* recs;
    GlyphInfo* glyphs;
} Font;

// ---- Cameras and models -------------------------------------------------------------------------

typedef struct Camera3D {
    Vector3 position, target, up;
    float fovy;  // degrees
    int projection;
} Camera3D;

typedef Camera3D Camera;

typedef struct Camera2D {
    Vector2 offset, target;
    float rotation;  // degrees
    float zoom;
} Camera2D;

typedef struct Mesh {
    int vertexCount, triangleCount;
    float *vertices, *texcoords, *texcoords2, *normals, *tangents;
    unsigned char* colors;
    unsigned short* indices;
    float *animVertices, *animNormals;
    unsigned char* boneIds;
    float* boneWeights;
    Matrix* boneMatrices;
    int boneCount;
    unsigned int vaoId;
    unsigned int* vboId;
} Mesh;

typedef struct Shader {
    unsigned int id;
    int* locs;
} Shader;

typedef struct MaterialMap {
    Texture2D texture;
    Color color;
    float value;
} MaterialMap;

typedef struct Material {
    Shader shader;
    MaterialMap* maps;
    float params[4];
} Material;

typedef struct Transform {
    Vector3 translation;
    Quaternion rotation;
    Vector3 scale;
} Transform;

typedef struct BoneInfo {
    char name[32];
    int parent;
} BoneInfo;

typedef struct Model {
    Matrix transform;
    int meshCount, materialCount;
    Mesh* meshes;
    Material* materials;
    int* meshMaterial;
    int boneCount;
    BoneInfo* bones;
    Transform* bindPose;
} Model;

typedef struct ModelAnimation {
    int boneCount, frameCount;
    BoneInfo* bones;
    Transform** framePoses;
    char name[32];
} ModelAnimation;

typedef struct Ray {
    Vector3 position, direction;
} Ray;

typedef struct RayCollision {
    bool hit;
    float distance;
    Vector3 point, normal;
} RayCollision;

typedef struct BoundingBox {
    Vector3 min, max;
} BoundingBox;

// ---- Sound --------------------------------------------------------------------------------------

typedef struct Wave {
    unsigned int frameCount, sampleRate, sampleSize, channels;
    void* data;
} Wave;

typedef struct rAudioBuffer rAudioBuffer;
typedef struct rAudioProcessor rAudioProcessor;

typedef struct AudioStream {
    rAudioBuffer* buffer;
    rAudioProcessor* processor;
    unsigned int sampleRate, sampleSize, channels;
} AudioStream;

typedef struct Sound {
    AudioStream stream;
    unsigned int frameCount;
} Sound;

typedef struct Music {
    AudioStream stream;
    unsigned int frameCount;
    bool looping;
    int ctxType;
    void* ctxData;
} Music;

typedef void (*AudioCallback)(void* bufferData, unsigned int frames);

// ---- The rest -----------------------------------------------------------------------------------

typedef struct VrDeviceInfo {
    int hResolution, vResolution;
    float hScreenSize, vScreenSize, eyeToScreenDistance;
    float lensSeparationDistance, interpupillaryDistance;
    float lensDistortionValues[4], chromaAbCorrection[4];
} VrDeviceInfo;

typedef struct VrStereoConfig {
    Matrix projection[2], viewOffset[2];
    float leftLensCenter[2], rightLensCenter[2], leftScreenCenter[2], rightScreenCenter[2];
    float scale[2], scaleIn[2];
} VrStereoConfig;

typedef struct FilePathList {
    unsigned int capacity, count;
    char** paths;
} FilePathList;

typedef struct AutomationEvent {
    unsigned int frame, type;
    int params[4];
} AutomationEvent;

typedef struct AutomationEventList {
    unsigned int capacity, count;
    AutomationEvent* events;
} AutomationEventList;

typedef unsigned char* (*LoadFileDataCallback)(const char* fileName, int* dataSize);
typedef bool (*SaveFileDataCallback)(const char* fileName, void* data, int dataSize);
typedef char* (*LoadFileTextCallback)(const char* fileName);
typedef bool (*SaveFileTextCallback)(const char* fileName, char* text);

#endif
