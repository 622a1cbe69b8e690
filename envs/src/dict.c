// Dict of vecenv.h: keyword arguments on the way in, log values on the way out.

#include "dict.h"

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

// The items never move: an environment may keep a pointer to one while it asks for others.
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
