// Functions of a Dict that only the stepper uses; vecenv.h has the others.

#ifndef PUFFER_DICT_H
#define PUFFER_DICT_H

#include "../include/vecenv.h"

void puffer_free_dict(Dict* dict);

// Return the item of a key, or NULL. Used by the functions of ini.h.
DictItem* puffer_dict_find(Dict* dict, const char* key);
double puffer_dict_number(Dict* dict, const char* key);
const char* puffer_dict_text(Dict* dict, const char* key);
DictItem* puffer_dict_put(Dict* dict, const char* key, double value, const char* text);

// Parse the text of a dictionary's item as a list of numbers with commas: set its `values`, `len`
// and `value`.
void puffer_dict_list(DictItem* item);

#endif
