# SPDX-License-Identifier: Apache-2.0
"""Which lane holds what of a matrix, as the manual of the instructions says it, and whole products."""

from __future__ import annotations

import torch


def left_factor(halves: torch.Tensor) -> torch.Tensor:
    """[32, 8] halves, four pairs a lane -> [16, 16]."""
    matrix = torch.zeros(16, 16, dtype=torch.float64)
    for lane in range(32):
        row, column = lane // 4, lane % 4 * 2
        for pair in range(4):
            at = column + pair // 2 * 8
            matrix[row + pair % 2 * 8, at : at + 2] = halves[lane, 2 * pair : 2 * pair + 2].double()
    return matrix


def right_factor(halves: torch.Tensor) -> torch.Tensor:
    """[32, 4] halves, two pairs a lane -> [16, 8]."""
    matrix = torch.zeros(16, 8, dtype=torch.float64)
    for lane in range(32):
        for pair in range(2):
            at = lane % 4 * 2 + pair * 8
            matrix[at : at + 2, lane // 4] = halves[lane, 2 * pair : 2 * pair + 2].double()
    return matrix


def sums_of(matrix: torch.Tensor) -> torch.Tensor:
    """[16, 8 * n] -> [32, 4 * n]: a lane's sums."""
    found = torch.zeros(32, matrix.shape[1] // 2, dtype=torch.float64)
    for lane in range(32):
        for number in range(found.shape[1]):
            row = lane // 4 + number // 2 % 2 * 8
            found[lane, number] = matrix[row, number // 4 * 8 + lane % 4 * 2 + number % 2]
    return found


def whole(sums: torch.Tensor) -> torch.Tensor:
    """The inverse of `sums_of` for n = 1: [32, 4] -> [16, 8]."""
    matrix = torch.zeros(16, 8, dtype=torch.float64)
    for lane in range(32):
        for number in range(4):
            matrix[lane // 4 + number // 2 * 8, lane % 4 * 2 + number % 2] = sums[lane, number].double()
    return matrix


def in_units(units: torch.Tensor, first: int, apart: int, columns: int) -> torch.Tensor:
    """Of [n, 8] units of halves as they lie in memory -> [16, columns]: two units a column."""
    upper, lower = units[first : first + columns], units[first + apart : first + apart + columns]
    return torch.cat([upper, lower], dim=1).double().T
