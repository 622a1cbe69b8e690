// Dict: parameters of environments, and values of their logs. Defines the functions that
// environments of 4.0 call (vecenv.h), and those that 5.0's are made of (ini.h).

#include "dict.h"

#include <pthread.h>

#include "host.h"

Dict* create_dict(int capacity) {
    Dict* dict = calloc(1, sizeof(Dict));
    if (dict == NULL) {
        return NULL;
    }
    dict->items = calloc((size_t)capacity, sizeof(DictItem));
    dict->capacity = dict->items == NULL ? 0 : capacity;
    return dict;
}

void puffer_free_dict(Dict* dict) {
    if (dict != NULL) {
        for (int i = 0; i < dict->size; i++) {
            free(dict->items[i].values);
        }
        free(dict->items);
        free(dict);
    }
}

static DictItem* find(Dict* dict, const char* key) {
    for (int i = 0; i < dict->size; i++) {
        if (strcmp(dict->items[i].key, key) == 0) {
            return &dict->items[i];
        }
    }
    return NULL;
}

// Append a key to a dictionary and return its new item. Items never move, since an environment may
// keep a pointer to one while it reads others.
static DictItem* append(Dict* dict, const char* key) {
    DictItem* item = &dict->lost;
    if (dict->size < dict->capacity) {
        item = &dict->items[dict->size++];
    } else {
        dict->full = true;
    }
    *item = (DictItem){.key = key};
    return item;
}

DictItem* dict_get_unsafe(Dict* dict, const char* key) {
    DictItem* item = find(dict, key);
    if (item == NULL || item->missing) {
        return NULL;
    }
    item->read = true;
    return item;
}

DictItem* dict_get(Dict* dict, const char* key) {
    DictItem* item = find(dict, key);
    if (item == NULL) {
        item = append(dict, key);
        item->missing = true;
    }
    item->read = true;
    return item;
}

void dict_set(Dict* dict, const char* key, double value) {
    DictItem* item = find(dict, key);
    if (item == NULL) {
        item = append(dict, key);
    }
    item->value = value;
}

void dict_reject(Dict* dict, const char* key, const char* expected) {
    dict_get(dict, key)->expected = expected;
}

// ---- Of 5.0: a missing key is an error at once, keys are copied, dictionaries grow --------------

// Return a copy of a text that lives as long as the library, the same copy for equal texts.
static const char* keep(const char* text) {
    typedef struct Kept {
        struct Kept* next;
        char text[];
    } Kept;
    static Kept* all = NULL;
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    const size_t bytes = strlen(text) + 1;
    pthread_mutex_lock(&mutex);
    Kept* kept = all;
    while (kept != NULL && strcmp(kept->text, text) != 0) {
        kept = kept->next;
    }
    if (kept == NULL && (kept = malloc(sizeof(Kept) + bytes)) != NULL) {
        memcpy(kept->text, text, bytes);
        kept->next = all;
        all = kept;
    }
    pthread_mutex_unlock(&mutex);
    return kept == NULL ? "" : kept->text;
}

DictItem* puffer_dict_find(Dict* dict, const char* key) {
    DictItem* item = find(dict, key);
    if (item != NULL) {
        item->read = true;
    }
    return item;
}

static DictItem* demand(Dict* dict, const char* key, const char* what) {
    DictItem* item = puffer_dict_find(dict, key);
    if (item == NULL) {
        const char* section = dict->name == NULL ? "?" : dict->name;
        puffer_fail(PUFFER_NO_KEY, "missing %s [%s] %s", what, section, key);
    }
    return item;
}

double puffer_dict_number(Dict* dict, const char* key) {
    return demand(dict, key, "key")->value;
}

const char* puffer_dict_text(Dict* dict, const char* key) {
    DictItem* item = demand(dict, key, "string");
    if (item->str == NULL) {
        puffer_fail(PUFFER_NO_KEY, "missing string [%s] %s", dict->name, key);
    }
    return item->str;
}

static bool grow(Dict* dict) {
    const int capacity = dict->capacity > 0 ? 2 * dict->capacity : 8;
    DictItem* items = realloc(dict->items, (size_t)capacity * sizeof(DictItem));
    if (items == NULL) {
        return false;
    }
    dict->items = items;
    dict->capacity = capacity;
    return true;
}

DictItem* puffer_dict_put(Dict* dict, const char* key, double value, const char* text) {
    DictItem* item = find(dict, key);
    if (item == NULL) {
        if (dict->size == dict->capacity) {
            grow(dict);
        }
        item = append(dict, keep(key));
    }
    item->value = value;
    item->str = text == NULL ? NULL : (char*)keep(text);
    free(item->values);
    item->values = NULL;
    item->len = 0;
    return item;
}

void puffer_dict_list(DictItem* item) {
    int commas = 0;
    for (const char* c = item->str; c != NULL && *c != '\0'; c++) {
        commas += *c == ',';
    }
    double* values = commas == 0 ? NULL : malloc((size_t)(commas + 1) * sizeof(double));
    const char* at = item->str;
    int len = 0;
    while (values != NULL && *(at += strspn(at, " \t")) != '\0') {
        char* end;
        values[len++] = strtod(at, &end);
        const bool number = end > at;
        at = end + strspn(end, " \t");
        if (!number || (*at != ',' && *at != '\0')) {
            len = 0;
            break;
        }
        at += *at == ',';
    }
    if (len == 0) {
        free(values);
        return;
    }
    item->values = values;
    item->len = len;
    item->value = values[0];
}
