"""The vocabulary of generated accounts."""

from typing import Final

CITIES: Final = (
    "Lisbon", "Oslo", "Nairobi", "Toronto", "Kyoto", "Lima", "Cairo", "Dublin", "Hanoi", "Perth", "Seville", "Tallinn",
)  # fmt: skip
PROJECTS: Final = (
    "Apartment Move", "Book Club", "Bike Repair", "Choir", "Client Onboarding", "Data Migration", "Exhibition",
    "Family Reunion", "Field Trip", "Fundraiser", "Garden", "Grant Proposal", "Hackathon", "Home Office", "Job Search",
    "Language Course", "Newsletter", "Photo Archive", "Podcast", "Quarterly Report", "Robotics Team", "School Play",
    "Spring Cleaning", "Tax Return", "Thesis", "Training Camp", "Volunteering", "Website Relaunch", "Wedding",
    "Workshop",
)  # fmt: skip
VERBS: Final = (
    "Book", "Check", "Collect", "Draft", "Label", "Order", "Pack", "Plan", "Print", "Proofread", "Replace", "Review",
    "Scan", "Sort", "Translate", "Update",
)  # fmt: skip
OBJECTS: Final = (
    "the boxes", "the brochures", "the cables", "the contracts", "the costumes", "the forms", "the guest list",
    "the handouts", "the invitations", "the invoices", "the keys", "the lamps", "the letters", "the maps", "the meals",
    "the minutes", "the music sheets", "the name tags", "the photographs", "the posters", "the prizes", "the receipts",
    "the samples", "the schedule", "the seats", "the slides", "the survey", "the tickets", "the tools",
    "the travel plan",
)  # fmt: skip
PLACES: Final = (
    "Community Centre", "Harbour Hall", "Library, second floor", "Main Office", "North Workshop", "Riverside Café",
    "School Gym", "Student Building", "Town Hall", "at home",
)  # fmt: skip
TIPS: Final = (
    "Ask for help if it takes longer.", "Do it in one go.", "Keep the receipts.", "Make a copy first.",
    "Start with the largest part.", "Tell the others when it is done.",
)  # fmt: skip
