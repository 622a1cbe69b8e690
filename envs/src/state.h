// The state of all environments as bytes. The caller must prevent steps meanwhile.
//
//     Head                            must be equal when the state is read
//     Record and its bytes, per environment, in order
//     observations, actions, rewards, terminals, masks: all N rows of each
//     generator of each environment's rand, if rand is called
//
// Every part is padded with zeros to a multiple of 16 bytes. Numbers have the machine's format; the
// caller checks that the reader's machine has the same.

#ifndef PUFFER_STATE_H
#define PUFFER_STATE_H

#include "ops.h"
#include "text.h"

// Write the state of all environments to `to`; with NULL nothing is written. Return its number of
// bytes. agents: as in ops.h.
size_t puffer_write_state(const StaticVec* vec, const int* agents, unsigned char* to);

// Restore all environments from a saved state. Return false, with the reason in `text`, if it
// doesn't fit. See puffer_load in vec.h.
bool puffer_read_state(StaticVec* vec, const int* agents, const unsigned char* from, size_t size,
                       Text* text);

#endif
