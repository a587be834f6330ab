"use strict";
// The budget over time: steps of ε spent, ε spent or reserved, and the limit. The table below it has the same values.
class BudgetChart {
  constructor(box) {
    this.box = box;
    this.points = [];
    this.svg = BudgetChart.part(box, "svg", { "aria-hidden": "true" });
    for (const name of ["grid", "area", "promised", "spent", "limit"]) this[name] = BudgetChart.part(this.svg, "path", { class: name });
    this.labels = BudgetChart.part(this.svg, "g", { class: "labels" });
    new ResizeObserver(() => this.draw()).observe(box);
  }

  static part(parent, tag, attributes) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return parent.appendChild(node);
  }

  update(points, now) { // [time, spent, promised, limit]; the last values hold until now
    this.points = points.map(([at, ...values]) => [Date.parse(at), ...values]);
    this.now = now;
    this.draw();
  }

  draw() {
    const width = this.box.clientWidth, height = this.box.clientHeight, { points } = this;
    this.svg.setAttribute("viewBox", `0 0 ${width || 1} ${height || 1}`);
    this.labels.replaceChildren();
    if (!width || !points.length) return;
    const left = 44, right = width - 12, top = 10, bottom = height - 26;
    const begin = points[0][0], end = Math.max(this.now, points.at(-1)[0], begin + 60000);
    const most = Math.max(...points.map(([, , promised, limit]) => Math.max(promised, limit))) * 1.08 || 1;
    const x = at => left + (right - left) * (at - begin) / (end - begin), y = value => bottom - (bottom - top) * value / most;
    const steps = column => points.map((point, i) => `${i ? `H${x(point[0]).toFixed(1)}V` : `M${x(point[0]).toFixed(1)} `}${y(point[column]).toFixed(1)}`).join("") + `H${right}`;
    for (const [name, column] of [["spent", 1], ["promised", 2], ["limit", 3]]) this[name].setAttribute("d", steps(column));
    this.area.setAttribute("d", `${steps(1)}V${bottom}H${left}Z`);
    const grid = [];
    for (const value of BudgetChart.ticks(most)) {
      grid.push(`M${left} ${y(value).toFixed(1)}H${right}`);
      this.label(left - 6, y(value) + 4, number(value), "end");
    }
    this.grid.setAttribute("d", grid.join(""));
    const long = end - begin > 2 * 86400000;
    const text = at => long ? new Date(at).toLocaleDateString("en-GB", { day: "numeric", month: "short" }) : new Date(at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
    this.label(left, height - 6, text(begin), "start");
    this.label(right, height - 6, "now", "end");
  }

  label(x, y, text, anchor) {
    BudgetChart.part(this.labels, "text", { x, y, "text-anchor": anchor }).textContent = text;
  }

  static ticks(most) {
    const size = 10 ** Math.floor(Math.log10(most)), step = [0.2, 0.5, 1, 2].map(times => times * size).find(each => most / each <= 5);
    const found = [];
    for (let value = 0; value <= most; value += step) found.push(Number(value.toPrecision(6)));
    return found;
  }
}
