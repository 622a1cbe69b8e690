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
    AT(Clamp), AT(Lerp), AT(Normalize), AT(Remap), AT(Wrap), AT(FloatEquals),
    AT(Vector2Add), AT(Vector2Subtract), AT(Vector2Scale), AT(Vector2Length), AT(Vector2Distance),
    AT(Vector2DotProduct), AT(Vector2Normalize), AT(Vector2Rotate), AT(Vector2Angle),
    AT(Vector2LineAngle), AT(Vector2Reflect), AT(Vector2MoveTowards), AT(Vector2ClampValue),
    AT(Vector3CrossProduct), AT(Vector3DotProduct), AT(Vector3Normalize), AT(Vector3Angle),
    AT(Vector3Transform), AT(Vector3RotateByQuaternion), AT(Vector3RotateByAxisAngle),
    AT(Vector3Perpendicular), AT(Vector3Project), AT(Vector3Reject), AT(Vector3Barycenter),
    AT(Vector3Unproject), AT(Vector3Refract), AT(Vector3CubicHermite),
    AT(MatrixMultiply), AT(MatrixTranspose), AT(MatrixDeterminant), AT(MatrixInvert),
    AT(MatrixTrace), AT(MatrixIdentity), AT(MatrixTranslate), AT(MatrixScale), AT(MatrixRotate),
    AT(MatrixRotateX), AT(MatrixRotateY), AT(MatrixRotateZ), AT(MatrixRotateXYZ),
    AT(MatrixRotateZYX), AT(MatrixLookAt), AT(MatrixPerspective), AT(MatrixOrtho),
    AT(QuaternionMultiply), AT(QuaternionInvert), AT(QuaternionFromMatrix), AT(QuaternionToMatrix),
    AT(QuaternionFromAxisAngle), AT(QuaternionFromEuler), AT(QuaternionToEuler),
    AT(QuaternionSlerp), AT(QuaternionFromVector3ToVector3), AT(QuaternionTransform),
    AT(CheckCollisionRecs), AT(CheckCollisionCircles), AT(CheckCollisionCircleRec),
    AT(CheckCollisionCircleLine), AT(CheckCollisionPointRec), AT(CheckCollisionPointTriangle),
    AT(CheckCollisionPointLine), AT(CheckCollisionPointPoly), AT(CheckCollisionLines),
    AT(GetCollisionRec), AT(CheckCollisionBoxes), AT(CheckCollisionSpheres),
    AT(GetRayCollisionSphere), AT(GetRayCollisionBox), AT(GetRayCollisionTriangle),
    AT(GetWorldToScreen2D), AT(GetScreenToWorld2D), AT(GetSplinePointBezierCubic),
    AT(GetSplinePointCatmullRom), AT(GetSplinePointBasis),
    AT(GetRandomValue), AT(SetRandomSeed), AT(LoadRandomSequence), AT(UnloadRandomSequence),
    AT(TextFormat), AT(IsFileExtension), AT(GetFileExtension), AT(GetCodepoint), AT(TextFindIndex),
    AT(ColorToHSV), AT(ColorFromHSV), AT(ColorToInt), AT(GetColor), AT(Fade),
    AT(WindowShouldClose), AT(IsKeyDown), AT(IsKeyUp), AT(GetScreenWidth), AT(LoadTexture),
    AT(LoadModelAnimations), AT(GetFrameTime), AT(GetTime), AT(LoadFileText), AT(UnloadFileText),
    AT(rlPushMatrix),
};

VISIBLE void* function_of(const char* name) {
    for (size_t i = 0; i < sizeof(entries) / sizeof(Entry); i++) {
        if (strcmp(entries[i].name, name) == 0) {
            return entries[i].at;
        }
    }
    return NULL;
}
