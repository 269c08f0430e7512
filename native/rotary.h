// cos and sin of rotary angles, the same bits on every machine: no libm, whose versions differ in the last place.
#pragma once

namespace octavo {

// out[0..half) = cos(position * inv_freq[i]) * scale, out[half..2 * half) = the sines, likewise. The angle is rounded
// to float first, as transformers computes it; everything after is in double and rounded once, before it is scaled.
void rotary_factors(int position, const float* inv_freq, int half, float scale, float* out);

}  // namespace octavo
