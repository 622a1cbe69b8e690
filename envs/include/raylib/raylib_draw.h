// Included by raylib.h: drawing shapes, text and models, which does nothing here.

#ifndef PUFFER_RAYLIB_DRAW_H
#define PUFFER_RAYLIB_DRAW_H

#pragma GCC system_header

PUFFER_VOID(SetShapesTexture, Texture2D texture, Rectangle source)
PUFFER_ZERO(Texture2D, GetShapesTexture, void)
PUFFER_ZERO(Rectangle, GetShapesTextureRectangle, void)
PUFFER_VOID(DrawPixel, int posX, int posY, Color color)
PUFFER_VOID(DrawPixelV, Vector2 position, Color color)
PUFFER_VOID(DrawLine, int startPosX, int startPosY, int endPosX, int endPosY, Color color)
PUFFER_VOID(DrawLineV, Vector2 startPos, Vector2 endPos, Color color)
PUFFER_VOID(DrawLineEx, Vector2 startPos, Vector2 endPos, float thick, Color color)
PUFFER_VOID(DrawLineStrip, const Vector2* points, int pointCount, Color color)
PUFFER_VOID(DrawLineBezier, Vector2 startPos, Vector2 endPos, float thick, Color color)
PUFFER_VOID(DrawCircle, int centerX, int centerY, float radius, Color color)
PUFFER_VOID(DrawCircleSector, Vector2 center, float radius, float startAngle, float endAngle,
            int segments, Color color)
PUFFER_VOID(DrawCircleSectorLines, Vector2 center, float radius, float startAngle, float endAngle,
            int segments, Color color)
PUFFER_VOID(DrawCircleGradient, int centerX, int centerY, float radius, Color inner, Color outer)
PUFFER_VOID(DrawCircleV, Vector2 center, float radius, Color color)
PUFFER_VOID(DrawCircleLines, int centerX, int centerY, float radius, Color color)
PUFFER_VOID(DrawCircleLinesV, Vector2 center, float radius, Color color)
PUFFER_VOID(DrawEllipse, int centerX, int centerY, float radiusH, float radiusV, Color color)
PUFFER_VOID(DrawEllipseLines, int centerX, int centerY, float radiusH, float radiusV, Color color)
PUFFER_VOID(DrawRing, Vector2 center, float innerRadius, float outerRadius, float startAngle,
            float endAngle, int segments, Color color)
PUFFER_VOID(DrawRingLines, Vector2 center, float innerRadius, float outerRadius, float startAngle,
            float endAngle, int segments, Color color)
PUFFER_VOID(DrawRectangle, int posX, int posY, int width, int height, Color color)
PUFFER_VOID(DrawRectangleV, Vector2 position, Vector2 size, Color color)
PUFFER_VOID(DrawRectangleRec, Rectangle rec, Color color)
PUFFER_VOID(DrawRectanglePro, Rectangle rec, Vector2 origin, float rotation, Color color)
PUFFER_VOID(DrawRectangleGradientV, int posX, int posY, int width, int height, Color top,
            Color bottom)
PUFFER_VOID(DrawRectangleGradientH, int posX, int posY, int width, int height, Color left,
            Color right)
PUFFER_VOID(DrawRectangleGradientEx, Rectangle rec, Color topLeft, Color bottomLeft, Color topRight,
            Color bottomRight)
PUFFER_VOID(DrawRectangleLines, int posX, int posY, int width, int height, Color color)
PUFFER_VOID(DrawRectangleLinesEx, Rectangle rec, float lineThick, Color color)
PUFFER_VOID(DrawRectangleRounded, Rectangle rec, float roundness, int segments, Color color)
PUFFER_VOID(DrawRectangleRoundedLines, Rectangle rec, float roundness, int segments, Color color)
PUFFER_VOID(DrawRectangleRoundedLinesEx, Rectangle rec, float roundness, int segments,
            float lineThick, Color color)
PUFFER_VOID(DrawTriangle, Vector2 v1, Vector2 v2, Vector2 v3, Color color)
PUFFER_VOID(DrawTriangleLines, Vector2 v1, Vector2 v2, Vector2 v3, Color color)
PUFFER_VOID(DrawTriangleFan, const Vector2* points, int pointCount, Color color)
PUFFER_VOID(DrawTriangleStrip, const Vector2* points, int pointCount, Color color)
PUFFER_VOID(DrawPoly, Vector2 center, int sides, float radius, float rotation, Color color)
PUFFER_VOID(DrawPolyLines, Vector2 center, int sides, float radius, float rotation, Color color)
PUFFER_VOID(DrawPolyLinesEx, Vector2 center, int sides, float radius, float rotation,
            float lineThick, Color color)
PUFFER_VOID(DrawSplineLinear, const Vector2* points, int pointCount, float thick, Color color)
PUFFER_VOID(DrawSplineBasis, const Vector2* points, int pointCount, float thick, Color color)
PUFFER_VOID(DrawSplineCatmullRom, const Vector2* points, int pointCount, float thick, Color color)
PUFFER_VOID(DrawSplineBezierQuadratic, const Vector2* points, int pointCount, float thick,
            Color color)
PUFFER_VOID(DrawSplineBezierCubic, const Vector2* points, int pointCount, float thick, Color color)
PUFFER_VOID(DrawSplineSegmentLinear, Vector2 p1, Vector2 p2, float thick, Color color)
PUFFER_VOID(DrawSplineSegmentBasis, Vector2 p1, Vector2 p2, Vector2 p3, Vector2 p4, float thick,
            Color color)
PUFFER_VOID(DrawSplineSegmentCatmullRom, Vector2 p1, Vector2 p2, Vector2 p3, Vector2 p4,
            float thick, Color color)
PUFFER_VOID(DrawSplineSegmentBezierQuadratic, Vector2 p1, Vector2 c2, Vector2 p3, float thick,
            Color color)
PUFFER_VOID(DrawSplineSegmentBezierCubic, Vector2 p1, Vector2 c2, Vector2 c3, Vector2 p4,
            float thick, Color color)
PUFFER_ZERO(Font, GetFontDefault, void)
PUFFER_ZERO(Font, LoadFont, const char* fileName)
PUFFER_ZERO(Font, LoadFontEx, const char* fileName, int fontSize, int* codepoints,
            int codepointCount)
PUFFER_ZERO(Font, LoadFontFromImage, Image image, Color key, int firstChar)
PUFFER_ZERO(Font, LoadFontFromMemory, const char* fileType, const unsigned char* fileData,
            int dataSize, int fontSize, int* codepoints, int codepointCount)
PUFFER_ZERO(bool, IsFontValid, Font font)
PUFFER_ZERO(GlyphInfo*, LoadFontData, const unsigned char* fileData, int dataSize, int fontSize,
            int* codepoints, int codepointCount, int type)
PUFFER_ZERO(Image, GenImageFontAtlas, const GlyphInfo* glyphs, Rectangle** glyphRecs,
            int glyphCount, int fontSize, int padding, int packMethod)
PUFFER_VOID(UnloadFontData, GlyphInfo* glyphs, int glyphCount)
PUFFER_VOID(UnloadFont, Font font)
PUFFER_ZERO(bool, ExportFontAsCode, Font font, const char* fileName)
PUFFER_VOID(DrawFPS, int posX, int posY)
PUFFER_VOID(DrawText, const char* text, int posX, int posY, int fontSize, Color color)
PUFFER_VOID(DrawTextEx, Font font, const char* text, Vector2 position, float fontSize,
            float spacing, Color tint)
PUFFER_VOID(DrawTextPro, Font font, const char* text, Vector2 position, Vector2 origin,
            float rotation, float fontSize, float spacing, Color tint)
PUFFER_VOID(DrawTextCodepoint, Font font, int codepoint, Vector2 position, float fontSize,
            Color tint)
PUFFER_VOID(DrawTextCodepoints, Font font, const int* codepoints, int codepointCount,
            Vector2 position, float fontSize, float spacing, Color tint)
PUFFER_VOID(SetTextLineSpacing, int spacing)
PUFFER_ZERO(int, GetGlyphIndex, Font font, int codepoint)
PUFFER_ZERO(GlyphInfo, GetGlyphInfo, Font font, int codepoint)
PUFFER_ZERO(Rectangle, GetGlyphAtlasRec, Font font, int codepoint)
PUFFER_ZERO(char*, LoadUTF8, const int* codepoints, int length)
PUFFER_VOID(UnloadUTF8, char* text)
PUFFER_NONE(int*, LoadCodepoints, count, const char* text, int* count)
PUFFER_VOID(UnloadCodepoints, int* codepoints)
PUFFER_ZERO(int, GetCodepointCount, const char* text)
PUFFER_NONE(int, GetCodepointPrevious, codepointSize, const char* text, int* codepointSize)
PUFFER_TEXT(CodepointToUTF8, int codepoint, int* utf8Size)
PUFFER_ZERO(char*, TextReplace, const char* text, const char* replace, const char* by)
PUFFER_ZERO(char*, TextInsert, const char* text, const char* insert, int position)
PUFFER_TEXT(TextJoin, const char** textList, int count, const char* delimiter)
PUFFER_NONE(const char**, TextSplit, count, const char* text, char delimiter, int* count)
PUFFER_TEXT(TextToUpper, const char* text)
PUFFER_TEXT(TextToLower, const char* text)
PUFFER_TEXT(TextToPascal, const char* text)
PUFFER_TEXT(TextToSnake, const char* text)
PUFFER_TEXT(TextToCamel, const char* text)
PUFFER_VOID(DrawLine3D, Vector3 startPos, Vector3 endPos, Color color)
PUFFER_VOID(DrawPoint3D, Vector3 position, Color color)
PUFFER_VOID(DrawCircle3D, Vector3 center, float radius, Vector3 rotationAxis, float rotationAngle,
            Color color)
PUFFER_VOID(DrawTriangle3D, Vector3 v1, Vector3 v2, Vector3 v3, Color color)
PUFFER_VOID(DrawTriangleStrip3D, const Vector3* points, int pointCount, Color color)
PUFFER_VOID(DrawCube, Vector3 position, float width, float height, float length, Color color)
PUFFER_VOID(DrawCubeV, Vector3 position, Vector3 size, Color color)
PUFFER_VOID(DrawCubeWires, Vector3 position, float width, float height, float length, Color color)
PUFFER_VOID(DrawCubeWiresV, Vector3 position, Vector3 size, Color color)
PUFFER_VOID(DrawSphere, Vector3 centerPos, float radius, Color color)
PUFFER_VOID(DrawSphereEx, Vector3 centerPos, float radius, int rings, int slices, Color color)
PUFFER_VOID(DrawSphereWires, Vector3 centerPos, float radius, int rings, int slices, Color color)
PUFFER_VOID(DrawCylinder, Vector3 position, float radiusTop, float radiusBottom, float height,
            int slices, Color color)
PUFFER_VOID(DrawCylinderEx, Vector3 startPos, Vector3 endPos, float startRadius, float endRadius,
            int sides, Color color)
PUFFER_VOID(DrawCylinderWires, Vector3 position, float radiusTop, float radiusBottom, float height,
            int slices, Color color)
PUFFER_VOID(DrawCylinderWiresEx, Vector3 startPos, Vector3 endPos, float startRadius,
            float endRadius, int sides, Color color)
PUFFER_VOID(DrawCapsule, Vector3 startPos, Vector3 endPos, float radius, int slices, int rings,
            Color color)
PUFFER_VOID(DrawCapsuleWires, Vector3 startPos, Vector3 endPos, float radius, int slices, int rings,
            Color color)
PUFFER_VOID(DrawPlane, Vector3 centerPos, Vector2 size, Color color)
PUFFER_VOID(DrawRay, Ray ray, Color color)
PUFFER_VOID(DrawGrid, int slices, float spacing)
PUFFER_ZERO(Model, LoadModel, const char* fileName)
PUFFER_ZERO(Model, LoadModelFromMesh, Mesh mesh)
PUFFER_ZERO(bool, IsModelValid, Model model)
PUFFER_VOID(UnloadModel, Model model)
PUFFER_ZERO(BoundingBox, GetModelBoundingBox, Model model)
PUFFER_VOID(DrawModel, Model model, Vector3 position, float scale, Color tint)
PUFFER_VOID(DrawModelEx, Model model, Vector3 position, Vector3 rotationAxis, float rotationAngle,
            Vector3 scale, Color tint)
PUFFER_VOID(DrawModelWires, Model model, Vector3 position, float scale, Color tint)
PUFFER_VOID(DrawModelWiresEx, Model model, Vector3 position, Vector3 rotationAxis,
            float rotationAngle, Vector3 scale, Color tint)
PUFFER_VOID(DrawModelPoints, Model model, Vector3 position, float scale, Color tint)
PUFFER_VOID(DrawModelPointsEx, Model model, Vector3 position, Vector3 rotationAxis,
            float rotationAngle, Vector3 scale, Color tint)
PUFFER_VOID(DrawBoundingBox, BoundingBox box, Color color)
PUFFER_VOID(DrawBillboard, Camera camera, Texture2D texture, Vector3 position, float scale,
            Color tint)
PUFFER_VOID(DrawBillboardRec, Camera camera, Texture2D texture, Rectangle source, Vector3 position,
            Vector2 size, Color tint)
PUFFER_VOID(DrawBillboardPro, Camera camera, Texture2D texture, Rectangle source, Vector3 position,
            Vector3 up, Vector2 size, Vector2 origin, float rotation, Color tint)
PUFFER_VOID(UploadMesh, Mesh* mesh, bool dynamic)
PUFFER_VOID(UpdateMeshBuffer, Mesh mesh, int index, const void* data, int dataSize, int offset)
PUFFER_VOID(UnloadMesh, Mesh mesh)
PUFFER_VOID(DrawMesh, Mesh mesh, Material material, Matrix transform)
PUFFER_VOID(DrawMeshInstanced, Mesh mesh, Material material, const Matrix* transforms,
            int instances)
PUFFER_ZERO(BoundingBox, GetMeshBoundingBox, Mesh mesh)
PUFFER_VOID(GenMeshTangents, Mesh* mesh)
PUFFER_ZERO(bool, ExportMesh, Mesh mesh, const char* fileName)
PUFFER_ZERO(bool, ExportMeshAsCode, Mesh mesh, const char* fileName)
PUFFER_ZERO(Mesh, GenMeshPoly, int sides, float radius)
PUFFER_ZERO(Mesh, GenMeshPlane, float width, float length, int resX, int resZ)
PUFFER_ZERO(Mesh, GenMeshCube, float width, float height, float length)
PUFFER_ZERO(Mesh, GenMeshSphere, float radius, int rings, int slices)
PUFFER_ZERO(Mesh, GenMeshHemiSphere, float radius, int rings, int slices)
PUFFER_ZERO(Mesh, GenMeshCylinder, float radius, float height, int slices)
PUFFER_ZERO(Mesh, GenMeshCone, float radius, float height, int slices)
PUFFER_ZERO(Mesh, GenMeshTorus, float radius, float size, int radSeg, int sides)
PUFFER_ZERO(Mesh, GenMeshKnot, float radius, float size, int radSeg, int sides)
PUFFER_ZERO(Mesh, GenMeshHeightmap, Image heightmap, Vector3 size)
PUFFER_ZERO(Mesh, GenMeshCubicmap, Image cubicmap, Vector3 cubeSize)
PUFFER_NONE(Material*, LoadMaterials, materialCount, const char* fileName, int* materialCount)
PUFFER_ZERO(Material, LoadMaterialDefault, void)
PUFFER_ZERO(bool, IsMaterialValid, Material material)
PUFFER_VOID(UnloadMaterial, Material material)
PUFFER_VOID(SetMaterialTexture, Material* material, int mapType, Texture2D texture)
PUFFER_VOID(SetModelMeshMaterial, Model* model, int meshId, int materialId)
PUFFER_NONE(ModelAnimation*, LoadModelAnimations, animCount, const char* fileName, int* animCount)
PUFFER_VOID(UpdateModelAnimation, Model model, ModelAnimation anim, int frame)
PUFFER_VOID(UpdateModelAnimationBones, Model model, ModelAnimation anim, int frame)
PUFFER_VOID(UnloadModelAnimation, ModelAnimation anim)
PUFFER_VOID(UnloadModelAnimations, ModelAnimation* animations, int animCount)
PUFFER_ZERO(bool, IsModelAnimationValid, Model model, ModelAnimation anim)
PUFFER_ZERO(RayCollision, GetRayCollisionMesh, Ray ray, Mesh mesh, Matrix transform)

#endif
