"use strict";
// Theme: the system's, until the button or ?theme=dark says otherwise.
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const name = () => root.dataset.theme || (system.matches ? "dark" : "light");
  const announce = () => {
    button.textContent = name() === "dark" ? "Light" : "Dark";
    window.dispatchEvent(new Event("themechange"));
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = name() === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* storage may be off for files */ }
    announce();
  });
  system.addEventListener("change", announce);
  announce();

  // A link into folded details opens them; so does printing.
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    if (target) target.scrollIntoView();
  };
  window.addEventListener("hashchange", reveal);
  if (location.hash) reveal();
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
})();

// Charts: a panel a table row, a colour a model, a thin line a seed.
(() => {
  const source = document.getElementById("chart-data");
  if (!source || !window.Plotly) return;
  const data = JSON.parse(source.textContent), measure = document.getElementById("measure");
  document.querySelector(".interactive").hidden = false;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isDark = () => document.getElementById("theme").textContent === "Light";

  const traces = (panel) => {
    const seen = new Set();
    return panel.runs.map((run) => {
      const [grid, losses] = run.curves[measure.value], model = data.models[run.model];
      const first = !seen.has(run.model);
      seen.add(run.model);
      return {
        x: panel.steps[grid], y: losses, name: model.label, legendgroup: run.model, showlegend: first,
        type: "scatter", mode: losses.length > 40 ? "lines" : "lines+markers", marker: { size: 5 },
        line: { color: model[isDark() ? "dark" : "light"], dash: model.dash, width: 1.3 },
        hovertemplate: `${model.label}, seed ${run.seed}<br>step %{x:,}<br>%{y:.4f}<extra></extra>`,
      };
    });
  };
  // The first steps' high losses may leave the frame, as in Fig. 4; a double click shows everything.
  const range = (shown) => {
    const last = Math.max(...shown.map((one) => one.x[one.x.length - 1] || 0));
    const all = shown.flatMap((one) => one.y), late = shown.flatMap((one) => one.y.filter((_, i) => one.x[i] >= data.cropped * last));
    if (!late.length) return undefined;
    const low = all.reduce((a, b) => Math.min(a, b)), high = late.reduce((a, b) => Math.max(a, b));
    const margin = 0.05 * (high - low) || 0.1;
    return [low - margin, high + margin];
  };
  const draw = () => data.panels.forEach((panel, index) => {
    const shown = traces(panel), text = colour("--text"), grid = colour("--rule");
    const axis = { gridcolor: grid, linecolor: colour("--muted"), zeroline: false, automargin: true };
    Plotly.react(document.getElementById(`chart-${index}`), shown, {
      title: { text: panel.title, x: 0.02, xanchor: "left", y: 0.91, font: { size: 13 } },
      font: { family: "system-ui, sans-serif", size: 12, color: text },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 10, r: 10, t: 70, b: 10 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--muted"), activecolor: text, orientation: "h" },
      legend: { orientation: "h", x: 1, xanchor: "right", y: 1.02, yanchor: "bottom", groupclick: "togglegroup" },
      hoverlabel: { bgcolor: colour("--soft"), font: { color: text } },
      xaxis: { ...axis, title: { text: "step" }, exponentformat: "none" },
      yaxis: { ...axis, title: { text: "nats per token" }, range: range(shown) },
      uirevision: measure.value,
    }, { responsive: true, displaylogo: false, showSendToCloud: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] });
  });
  measure.addEventListener("change", draw);
  window.addEventListener("themechange", draw);
  draw();
})();
