// Panels: 16 rows interleaved, as kernels/interleaved.h reads them. Made when a matrix is repacked, or of rows as they
// lie in the file while they are multiplied.
#pragma once
#include "linear.h"

namespace fewbit {

size_t count_interleaved(const Matrix& w);  // rows of w that lie in panels
// The layout of rows of w in a panel: as many k-blocks, all of them whole.
Layout panel_layout(const Matrix& w);
// `count` rows of w from `first` on as a panel. What is missing of 16 rows, or of their last k-block, are zeros.
void make_panel(const Matrix& w, size_t first, size_t count, const Layout& at, uint8_t* out);
// `count` rows from `first` on, both multiples of 16, out of their panels.
void copy_rows(const Matrix& w, size_t first, size_t count, uint8_t* out);

}  // namespace fewbit
