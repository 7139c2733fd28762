# SPDX-License-Identifier: Apache-2.0
"""The report: a study as one self-contained HTML file that says why its winner won."""
