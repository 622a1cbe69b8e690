// Functions with which environments of PufferLib 5.0 read a Dict, under the names of upstream's ini.h.
// A missing key is an error at once, keys and texts are copied, and a dictionary grows.

#ifndef PUFFER_INI_H
#define PUFFER_INI_H

#include <stddef.h>

#include "../puffer_dict.h"

// Return the item of a key, or NULL. It is valid until the next item is added.
DictItem* puffer_dict_find(Dict* dict, const char* key);
double puffer_dict_number(Dict* dict, const char* key);
const char* puffer_dict_text(Dict* dict, const char* key);
DictItem* puffer_dict_put(Dict* dict, const char* key, double value, const char* text);

static inline DictItem* dict_find(Dict* dict, const char* key) {
    return puffer_dict_find(dict, key);
}

// Return the value of a dictionary's key as a number: of a list the first number, 0 if the text is
// no number.
static inline double dict_get(Dict* dict, const char* key) {
    return puffer_dict_number(dict, key);
}

// Return the value of a dictionary's key as text, as written in the configuration.
static inline const char* dict_get_str(Dict* dict, const char* key) {
    return puffer_dict_text(dict, key);
}

// Set a key of a dictionary to a number; a missing key is appended.
static inline DictItem* dict_set(Dict* dict, const char* key, double value) {
    return puffer_dict_put(dict, key, value, NULL);
}

static inline DictItem* dict_set_str(Dict* dict, const char* key, const char* value) {
    return puffer_dict_put(dict, key, 0.0, value);
}

#endif
