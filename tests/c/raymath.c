// The stand-in for raylib as functions that can be called by name: it has only static ones.

#include "raylib.h"
#include "raymath.h"
#include "rlgl.h"

#define VISIBLE __attribute__((visibility("default")))

typedef struct {
    const char* name;
    void* at;
} Entry;

#define AT(function) {#function, (void*)function}

static const Entry entries[] = {
    AT(Clamp), AT(Lerp), AT(Normalize), AT(Remap), AT(Wrap), AT(Vector2Add), AT(Vector2Subtract),
    AT(Vector2Scale), AT(Vector2Distance), AT(Vector2Normalize), AT(Vector2Rotate),
    AT(Vector2Angle), AT(Vector3CrossProduct), AT(Vector3DotProduct), AT(Vector3Angle),
    AT(Vector3Transform), AT(Vector3RotateByQuaternion), AT(MatrixMultiply), AT(MatrixTranspose),
    AT(MatrixDeterminant), AT(MatrixInvert), AT(MatrixTranslate), AT(MatrixScale), AT(MatrixRotate),
    AT(MatrixRotateX), AT(MatrixRotateY), AT(MatrixRotateZ), AT(MatrixRotateXYZ),
    AT(QuaternionMultiply), AT(QuaternionInvert), AT(QuaternionFromMatrix), AT(QuaternionToMatrix),
    AT(QuaternionFromAxisAngle), AT(CheckCollisionRecs), AT(CheckCollisionCircles),
    AT(CheckCollisionCircleRec), AT(CheckCollisionPointRec), AT(GetCollisionRec),
    AT(CheckCollisionBoxes), AT(CheckCollisionSpheres), AT(GetRayCollisionSphere),
    AT(GetRayCollisionBox), AT(GetRandomValue), AT(SetRandomSeed), AT(WindowShouldClose),
    AT(IsKeyDown), AT(IsKeyUp), AT(GetScreenWidth), AT(GetFrameTime), AT(GetTime),
};

VISIBLE void* function_of(const char* name) {
    for (size_t i = 0; i < sizeof(entries) / sizeof(Entry); i++) {
        if (strcmp(entries[i].name, name) == 0) {
            return entries[i].at;
        }
    }
    return NULL;
}
