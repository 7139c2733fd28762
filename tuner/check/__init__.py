# SPDX-License-Identifier: Apache-2.0
"""Templates checked without a GPU: their configs executed in the emulator and judged against float64."""
