// What the theme leaves out for those who use a screen reader or a keyboard.
document$.subscribe(() => {
  document.querySelector("[data-md-component=search]")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset p:has(> img)").forEach((part) => (part.tabIndex = 0));
});
