"use strict";

const number = (value) => {
  if (value === null) return "undefined";
  return value === 0 || Math.abs(value) >= 0.00995 ? value.toFixed(3) : value.toPrecision(2);
};

function followSlider() {
  const data = document.getElementById("risk-coverage");
  if (!data) return;
  const curve = JSON.parse(data.textContent);
  const slider = document.getElementById("threshold");
  const show = (name, text) => { document.getElementById("shown-" + name).textContent = text; };
  const update = () => {
    const point = Number(slider.value);
    const coverage = curve.coverage[point];
    const review = coverage === null ? null : 1 - coverage;
    show("threshold", number(curve.threshold[point]));
    show("coverage", number(coverage));
    show("risk", number(curve.risk[point]));
    show("review", review === null ? "undefined" : `${number(review)} (${Math.round(1000 * review)} of 1 000)`);
    slider.setAttribute(
      "aria-valuetext",
      `confidence at least ${number(curve.threshold[point])}: accepted ${number(coverage)}, ` +
        `error among accepted ${number(curve.risk[point])}`,
    );
  };
  const certified = document.getElementById("certified");
  if (certified) {
    const point = Number(certified.dataset.point);
    certified.style.setProperty("--at", point / Math.max(1, Number(slider.max)));
    certified.querySelector("button").addEventListener("click", () => {
      slider.value = point;
      update();
    });
  }
  const typical = curve.coverage.findIndex((coverage) => coverage >= 0.8);
  slider.value = typical < 0 ? slider.max : typical;
  slider.addEventListener("input", update);
  document.getElementById("slider").hidden = false;
  update();
}

function sortKey(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.sort === undefined) return cell.textContent.trim();
  return cell.dataset.sort === "" ? NaN : Number(cell.dataset.sort);
}

function before(a, b, sign) {
  if (typeof a === "string") return sign * a.localeCompare(b, "en", { numeric: true });
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b); // undefined last, either way
  return sign * (a - b);
}

function sortBy(table, header) {
  const ascending = header.getAttribute("aria-sort") !== "ascending";
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [sortKey(row, header.cellIndex), row]);
  keyed.sort(([a], [b]) => before(a, b, ascending ? 1 : -1));
  body.append(...keyed.map(([, row]) => row));
}

function makeSortable(table) {
  for (const header of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    button.addEventListener("click", () => sortBy(table, header));
    header.replaceChildren(button);
  }
}

followSlider();
document.querySelectorAll("table.sortable").forEach(makeSortable);
