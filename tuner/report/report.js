// SPDX-License-Identifier: Apache-2.0
// Unfolds the page's tables and draws its charts, anew when the page turns light or dark.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

  const trials = page.rows.map((row) => {
    const trial = {};
    page.columns.forEach((name, i) => { if (row[i] !== null) trial[name] = row[i]; });
    const template = page.templates[trial.t];
    trial.template = template.name;
    trial.config = template.parameters.map((p, i) => `${page.parameters[p]}=${trial.values[i]}`).join(" ");
    template.parameters.forEach((p, i) => { trial[`p${p}`] = trial.values[i]; });
    delete trial.values;
    return trial;
  });

  const MOST_LABELS = 12; // of an axis: beyond that its ends alone

  // One row for each right config of a template on each of its axes, from 0 at the bottom to 1 at the top.
  const positions = (index) => {
    const { axes, time } = page.templates[index];
    // The slowest first: what is drawn last is on top.
    const timed = trials.filter((trial) => trial.t === index && trial.ms !== undefined)
      .sort((a, b) => (a.role === "winner") - (b.role === "winner") || b.ms - a.ms);
    timed.forEach((trial, i) => { trial.slowness = timed.length > 1 ? 1 - i / (timed.length - 1) : 0; });
    const logs = timed.map((trial) => Math.log(trial.ms));
    const low = Math.min(...logs), span = Math.max(...logs) - low;
    const rows = timed.flatMap((trial, i) => [
      ...axes.map((axis, step) => {
        const label = trial[`p${axis.parameter}`];
        const place = axis.values.indexOf(label) / (axis.values.length - 1);
        // The golden ratio spreads the lines of a value evenly, always the same way.
        const spread = 0.03 * ((trial.number * 0.618034) % 1 - 0.5);
        const last = axis.values.length - 1;
        const shown = last < MOST_LABELS || label === axis.values[0] || label === axis.values[last];
        return { ...trial, axis: axis.name, step, place, position: place + spread, ...(shown && { label }) };
      }),
      { ...trial, axis: time, step: axes.length, position: span ? (logs[i] - low) / span : 0 },
    ]);
    const ends = timed.length ? [[low, 0], [low + span, 1]] : [];
    for (const [log, place] of span ? ends : ends.slice(0, 1)) {
      const text = `${Number(Math.exp(log).toPrecision(3))} ms`;
      rows.push({ axis: time, label: text, place });
    }
    return rows;
  };

  const tables = { trials, finals: page.finals, roofs: page.roofs };
  page.templates.forEach((_, index) => { tables[`positions-${index}`] = positions(index); });

  const style = () => {
    const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
    const [ink, quiet, rule] = [colour("ink"), colour("quiet"), colour("rule")];
    return {
      background: null,
      font: "system-ui, DejaVu Sans, sans-serif",
      view: { stroke: null },
      text: { color: ink },
      style: { halo: { stroke: colour("ground"), strokeWidth: 4, strokeJoin: "round" } },
      axis: {
        labelColor: quiet, titleColor: quiet, gridColor: rule, domainColor: rule, tickColor: rule,
        labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal", titlePadding: 8,
      },
      legend: { labelColor: ink, titleColor: quiet, labelFontSize: 12 },
    };
  };

  // Vega writes into the rows that it is given, so each chart has rows of its own.
  const filled = (spec) => ({
    ...spec,
    datasets: {
      ...spec.datasets,
      ...Object.fromEntries(Object.entries(tables).map(([name, rows]) => [name, rows.map((row) => ({ ...row }))])),
    },
  });

  const views = new Map();
  const draw = async (chart) => {
    const place = document.getElementById(chart.id);
    if (place.closest("details:not([open])")) return; // it has no width yet; drawn when it is opened
    views.get(chart.id)?.finalize();
    views.set(chart.id, await vegaEmbed(place, filled(chart.spec), {
      actions: false, renderer: "svg", config: style(), tooltip: { theme: dark() ? "dark" : "light" },
    }));
  };
  const drawAll = async () => {
    root.dataset.drawn = "no";
    for (const chart of page.charts) {
      try {
        await draw(chart);
      } catch (error) {
        console.error(error);
        document.getElementById(chart.id).textContent = `This chart could not be drawn: ${error.message}`;
      }
    }
    root.dataset.drawn = "yes";
  };

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    drawAll();
  });
  system.addEventListener("change", drawAll);
  for (const details of document.querySelectorAll("details")) {
    details.addEventListener("toggle", () => {
      if (details.open) page.charts.filter((c) => details.querySelector(`#${c.id}`) && !views.has(c.id)).forEach(draw);
    });
  }
  drawAll();
})();
