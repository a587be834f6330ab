// The arrows that open a part of the navigation have no words: say to a screen reader what each opens.
document.addEventListener("DOMContentLoaded", () => {
  for (const arrow of document.querySelectorAll("nav summary")) {
    const link = arrow.closest("li")?.querySelector("a");
    arrow.setAttribute("aria-label", `Pages below ${link ? link.textContent.trim() : "this one"}`);
  }
});
