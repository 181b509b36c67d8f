"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const preferred = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : preferred.matches);

  function layoutOf(figure) {
    const style = getComputedStyle(root);
    const text = style.getPropertyValue("--text").trim();
    const line = style.getPropertyValue("--line").trim();
    const { template, ...layout } = figure.layout;
    const axis = (own) => ({ automargin: true, gridcolor: line, zerolinecolor: line, ...own });
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text },
      margin: { t: 20, r: 20, ...layout.margin },
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
    };
  }

  const figures = [...document.querySelectorAll("script.figure")].map((script) => ({
    element: document.getElementById(script.dataset.for),
    figure: JSON.parse(script.textContent),
  }));

  function draw() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(isDark()));
    for (const { element, figure } of figures) {
      Plotly.react(element, figure.data, layoutOf(figure), { responsive: true, displaylogo: false });
    }
  }

  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    draw();
  });
  preferred.addEventListener("change", draw);

  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  };

  function sortBy(table, column, head) {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
    rows.sort(([one], [other]) => {
      const order = typeof one === "number" ? one - other : one.localeCompare(other, "en", { numeric: true });
      return down ? -order : order;
    });
    body.append(...rows.map(([, row]) => row));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const sorter = document.createElement("button");
      sorter.type = "button";
      sorter.textContent = head.textContent;
      head.replaceChildren(sorter);
      sorter.addEventListener("click", () => sortBy(table, column, head));
    });
    const search = document.getElementById(table.dataset.search);
    const output = document.getElementById(table.dataset.count);
    if (!search) continue;
    const texts = new Map([...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]));
    const filter = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const [row, text] of texts) {
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      if (output) output.textContent = `${shown} of ${texts.size}`;
    };
    search.addEventListener("input", filter);
    filter();
  }

  draw();
})();
