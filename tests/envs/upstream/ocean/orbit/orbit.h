// orbit: hold a satellite on a ring around a planet, against its pull. In upstream's form: it draws
// itself with raylib, and moves with raymath.

#include <math.h>
#include <stdlib.h>

#include "raylib.h"
#include "raymath.h"

#define COAST 0
#define FORWARD 1
#define BACKWARD 2
#define LEFT 3
#define RIGHT 4

const Color DEEP = (Color){6, 24, 24, 255};
const float SCALE = 150.0f;  // pixels
const int SIZE = 720;

typedef struct {
    float perf;            // part of the time on the ring, 0 to 1
    float score;           // the same
    float episode_return;
    float episode_length;
    float lost;            // crashed or escaped
    float n;
} Log;

typedef struct Client {
    Texture2D planet;
    RenderTexture2D trail;
    Sound burn;
    Camera2D camera;
    float shake;
} Client;

typedef struct {
    Log log;
    float* observations;  // (8,)
    float* actions;       // (1,)
    float* rewards;
    float* terminals;
    int num_agents;
    unsigned int rng;

    Client* client;
    Vector2 position;  // the ring's radius is 1
    Vector2 velocity;
    float thrust;
    float width;  // of the ring, to either side
    int max_steps;
    int tick;
    float on_ring;
    float total;
} Orbit;

float uniform(Orbit* env, float low, float high) {
    return Lerp(low, high, (float)rand_r(&env->rng) / (float)RAND_MAX);
}

void compute_observations(Orbit* env) {
    const Vector2 up = Vector2Normalize(env->position);
    const Vector2 along = (Vector2){-up.y, up.x};
    const float radius = Vector2Length(env->position);
    env->observations[0] = env->position.x;
    env->observations[1] = env->position.y;
    env->observations[2] = env->velocity.x;
    env->observations[3] = env->velocity.y;
    env->observations[4] = 2.0f * (radius - 1.0f);
    env->observations[5] = 2.0f * Vector2DotProduct(env->velocity, up);
    env->observations[6] = 2.0f * (Vector2DotProduct(env->velocity, along) - 1.0f);
    env->observations[7] = (float)env->tick / (float)env->max_steps;
}

void add_log(Orbit* env, bool lost) {
    const float score = env->on_ring / (float)env->max_steps;
    env->log.perf += score;
    env->log.score += score;
    env->log.episode_return += env->total;
    env->log.episode_length += (float)env->tick;
    env->log.lost += lost ? 1.0f : 0.0f;
    env->log.n += 1.0f;
}

void c_reset(Orbit* env) {
    const float angle = uniform(env, -PI, PI);
    const Vector2 up = Vector2Rotate((Vector2){1.0f, 0.0f}, angle);
    env->position = Vector2Scale(up, uniform(env, 0.75f, 1.3f));
    env->velocity = Vector2Scale((Vector2){-up.y, up.x}, uniform(env, 0.8f, 1.15f));
    env->tick = 0;
    env->on_ring = 0.0f;
    env->total = 0.0f;
    compute_observations(env);
}

void c_step(Orbit* env) {
    const float dt = 0.1f;
    const Vector2 way = Vector2Normalize(env->velocity);
    Vector2 push = Vector2Zero();
    switch ((int)env->actions[0]) {
        case FORWARD: push = way; break;
        case BACKWARD: push = Vector2Negate(way); break;
        case LEFT: push = Vector2Rotate(way, PI / 2.0f); break;
        case RIGHT: push = Vector2Rotate(way, -PI / 2.0f); break;
        default: break;
    }
    const float radius = Vector2Length(env->position);
    const Vector2 pull = Vector2Scale(env->position, -1.0f / (radius * radius * radius));
    const Vector2 force = Vector2Add(pull, Vector2Scale(push, env->thrust));
    env->velocity = Vector2Add(env->velocity, Vector2Scale(force, dt));
    env->position = Vector2Add(env->position, Vector2Scale(env->velocity, dt));
    env->tick += 1;

    const float height = Vector2Length(env->position);
    const bool crashed = CheckCollisionPointCircle(env->position, Vector2Zero(), 0.4f);
    const bool lost = crashed || height > 2.0f;
    const float near = Clamp(1.0f - fabsf(height - 1.0f) / env->width, 0.0f, 1.0f);
    env->on_ring += near > 0.0f ? 1.0f : 0.0f;
    env->rewards[0] = lost ? -1.0f : 0.1f * near;
    env->total += env->rewards[0];
    if (lost || env->tick >= env->max_steps) {
        env->terminals[0] = 1.0f;
        add_log(env, lost);
        c_reset(env);
        return;
    }
    compute_observations(env);
}

Client* make_client(Orbit* env) {
    Client* client = (Client*)calloc(1, sizeof(Client));
    SetConfigFlags(FLAG_MSAA_4X_HINT);
    InitWindow(SIZE, SIZE, "PufferLib Orbit");
    InitAudioDevice();
    SetTargetFPS(60);
    client->planet = LoadTexture("resources/orbit/planet.png");
    client->trail = LoadRenderTexture(SIZE, SIZE);
    client->burn = LoadSound("resources/orbit/burn.wav");
    client->camera.offset = (Vector2){SIZE / 2.0f, SIZE / 2.0f};
    client->camera.zoom = 1.0f;
    env->client = client;
    return client;
}

void c_render(Orbit* env) {
    if (env->client == NULL) {
        make_client(env);
    }
    if (WindowShouldClose() || IsKeyDown(KEY_ESCAPE)) {
        exit(0);
    }
    Client* client = env->client;
    if ((int)env->actions[0] != COAST && !IsSoundPlaying(client->burn)) {
        PlaySound(client->burn);
    }
    client->camera.zoom = Clamp(client->camera.zoom + 0.1f * GetMouseWheelMove(), 0.5f, 2.0f);
    BeginDrawing();
    ClearBackground(DEEP);
    BeginMode2D(client->camera);
    DrawCircleLinesV(Vector2Zero(), SCALE, Fade(SKYBLUE, 0.5f));
    const Rectangle source = {0, 0, (float)client->planet.width, (float)client->planet.height};
    const Rectangle dest = {0, 0, 0.8f * SCALE, 0.8f * SCALE};
    const Vector2 middle = {0.4f * SCALE, 0.4f * SCALE};
    DrawTexturePro(client->planet, source, dest, middle, 0.0f, WHITE);
    const Vector2 at = Vector2Scale(env->position, SCALE);
    DrawCircleV(at, 6.0f, RED);
    DrawLineEx(at, Vector2Add(at, Vector2Scale(env->velocity, 40.0f)), 2.0f, GOLD);
    EndMode2D();
    DrawText(TextFormat("On the ring: %d", (int)env->on_ring), 10, 10, 20, RAYWHITE);
    EndDrawing();
}

void c_close(Orbit* env) {
    if (env->client != NULL) {
        UnloadTexture(env->client->planet);
        UnloadRenderTexture(env->client->trail);
        UnloadSound(env->client->burn);
        CloseAudioDevice();
        CloseWindow();
        free(env->client);
        env->client = NULL;
    }
}
